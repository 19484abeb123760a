"""`kvsuite golden`: what is recorded, and what unknown versions are held against."""

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(help="List goldens, move the baseline.", no_args_is_help=True)

Goldens = Annotated[Path, typer.Option("--goldens", help="Folder of the goldens.")]
DEFAULT_GOLDENS = Path("goldens")


@app.command("list")
def list_goldens(
    engine: Annotated[str | None, typer.Option(help="Only this engine.")] = None,
    goldens: Goldens = DEFAULT_GOLDENS,
) -> None:
    """List every golden; `*` marks the baseline.

    Exit code 1 where one, or a baseline, is damaged.
    """
    from rich.table import Table

    from kvsuite.cli.output import print_line, print_table
    from kvsuite.errors import GoldenError
    from kvsuite.golden.store import GoldenStore

    if not goldens.is_dir():
        raise GoldenError(
            f"{goldens}: no such folder: give --goldens, or record with pytest --update-goldens"
        )
    store = GoldenStore(goldens)
    stored = store.list(engine)
    table = Table("engine", "hash", "case", "trace", "dtype", "file", box=None, pad_edge=False)
    for golden in stored:
        document = golden.document
        mark = "*" if golden.is_baseline else ""
        named = (document.case, document.trace.name, document.dtype) if document else (golden.problem, "", "")
        table.add_row(golden.engine, f"{golden.engine_hash}{mark}", *named, golden.path.name)
    print_table(table)
    damaged = sum(golden.document is None for golden in stored)
    print_line(f"{len(stored)} goldens, {damaged} damaged")
    problems = store.damaged_baselines(engine)
    for problem in problems:
        print_line(problem)
    raise typer.Exit(1 if damaged or problems else 0)


@app.command()
def baseline(
    engine: Annotated[str, typer.Argument(help="Engine whose baseline moves.")],
    engine_hash: Annotated[
        str | None,
        typer.Argument(help="Recorded hash, its first digits, or a version; prints the baseline without it."),
    ] = None,
    goldens: Goldens = DEFAULT_GOLDENS,
) -> None:
    """Print the engine hash that unknown versions are held against, or move it."""
    from kvsuite.cli.output import print_line
    from kvsuite.errors import GoldenError
    from kvsuite.golden.store import GoldenStore

    store = GoldenStore(goldens)
    if engine_hash is not None:
        print_line(f"baseline of {engine}: {store.set_baseline(engine, engine_hash)}")
        return
    found = store.baseline(engine)
    if found is None:
        raise GoldenError(
            f"{engine} has no baseline in {goldens}: give --goldens, or record with pytest --update-goldens"
        )
    print_line(found)
