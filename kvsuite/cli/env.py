"""`kvsuite env`: engines of other versions, each in an environment of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from kvsuite.engine.environments.store import Stored

app = typer.Typer(help="Create, list and remove environments of engines.", no_args_is_help=True)

Loader = Annotated[
    str | None, typer.Option(help="full or filtered; without it the first that the engine has.")
]
_NAME = "NAME@VERSION"


@app.command()
def create(
    engine: Annotated[str, typer.Argument(metavar=_NAME, help="Such as vllm@0.23.0 or vllm@newest.")],
    loader: Loader = None,
) -> None:
    """Build an environment from the package index, unless it is there."""
    from kvsuite.cli.output import print_figures
    from kvsuite.engine.environments import ensure
    from kvsuite.engine.registry import prepare

    name, version = _split(engine)
    made = ensure(name, version, loader=loader)
    prepare(made.name, made.version)
    print_figures(
        [
            ("environment", f"{made.name}@{made.version} ({made.loader})"),
            ("folder", str(made.folder)),
            ("interpreter", str(made.python)),
        ]
    )


@app.command("list")
def list_environments() -> None:
    """List what is built, and what is damaged or outdated."""
    from rich.table import Table

    from kvsuite.cli.output import print_line, print_table
    from kvsuite.cli.sizes import format_bytes
    from kvsuite.engine.environments.places import environments_folder
    from kvsuite.engine.environments.store import stored_environments

    found = stored_environments()
    table = Table(
        "environment", "loader", "python", "size", "built", "took", "state", box=None, pad_edge=False
    )
    for stored in found:
        made = stored.manifest
        if made is None:
            table.add_row(stored.folder.name, "", "", "", "", "", stored.problem)
            continue
        table.add_row(
            f"{made.name}@{made.version}",
            made.loader,
            made.python,
            format_bytes(made.size_bytes),
            made.created,
            f"{made.build_s:.0f} s",
            stored.problem or "ready",
        )
    print_table(table)
    total = sum(stored.manifest.size_bytes for stored in found if stored.manifest)
    print_line(f"{len(found)} environments, {format_bytes(total)}, in {environments_folder()}")


@app.command()
def remove(
    engine: Annotated[str | None, typer.Argument(metavar=f"[{_NAME}]", help="What to remove.")] = None,
    loader: Annotated[str | None, typer.Option(help="Only the one of this loader.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Every environment.")] = False,
) -> None:
    """Remove environments: those of one engine's version, or all."""
    from kvsuite.cli.output import print_line
    from kvsuite.engine.environments.store import remove_folder, stored_environments
    from kvsuite.errors import ConfigError

    if (engine is None) != everything:
        raise ConfigError(f"kvsuite env remove: give {_NAME}, or --all")
    stored = stored_environments()
    chosen = stored if engine is None else [one for one in stored if _is_of(one, engine, loader)]
    if engine is not None and not chosen:
        raise ConfigError(f"{engine}: no such environment is built; kvsuite env list shows what is")
    for one in chosen:
        remove_folder(one.folder)
        print_line(f"removed {one.folder}")


def _split(engine: str) -> tuple[str, str]:
    from kvsuite.errors import ConfigError

    name, at, version = engine.partition("@")
    if not (name and at and version):
        raise ConfigError(f"{engine!r}: expected {_NAME}, such as vllm@0.23.0 or vllm@newest")
    return name, version


def _is_of(stored: Stored, engine: str, loader: str | None) -> bool:
    """Whether a stored environment is the named one; a damaged one is known by the name of its folder."""
    prefix, _, kind = stored.folder.name.rpartition("-")
    return prefix == "-".join(_split(engine)) and loader in (None, kind)
