"""`kvsuite engines`: what can be asked for with `--engine`."""


def engines() -> None:
    """List engines and capabilities.

    Each with version, origin and claims, and what each capability means.
    """
    from rich.table import Table

    from kvsuite.cli.engine_list import listed, versions_line
    from kvsuite.cli.output import print_line, print_table
    from kvsuite.engine.contract import Capability

    found = listed()
    table = Table("engine", "version", "from", "capabilities", "what it is", box=None, pad_edge=False)
    for engine in found:
        table.add_row(
            engine.name, engine.version, engine.origin, ", ".join(engine.capabilities), engine.summary
        )
    print_table(table)
    print_line(versions_line())
    claimed = {name for engine in found for name in engine.capabilities}
    print_line("")
    meanings = Table("capability", "claimed", "meaning", box=None, pad_edge=False)
    for capability in Capability:
        meanings.add_row(capability.name, "yes" if capability.name in claimed else "no", capability.value)
    print_table(meanings)
