"""The entry point: registers the verbs and turns errors into one message and an exit code."""

import io
import sys
from typing import Annotated

import typer

from kvsuite import __version__
from kvsuite.cli import calibrate, compare, drift, engines, env, golden, replay, report, sweep, trace
from kvsuite.errors import KvsuiteError

_BAD_INPUT = 2

app = typer.Typer(
    name="kvsuite",
    help="Regression and conformance suite for paged KV caches.",
    epilog="Exit codes: 0 ok, 1 the ledger or the content is wrong, 2 bad input or usage, "
    "3 device or environment unavailable, 4 SLO unreachable on this device, 130 interrupted.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command()(replay.replay)
app.command()(sweep.sweep)
app.command()(calibrate.calibrate)
app.command()(compare.compare)
app.command()(drift.drift)
app.command()(report.report)
app.command()(engines.engines)
app.add_typer(env.app, name="env")
app.add_typer(trace.app, name="trace")
app.add_typer(golden.app, name="golden")


def _print_version(value: bool) -> None:
    if value:
        typer.echo(f"kvsuite {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    del version


def main() -> None:
    """Run the command line; the exit codes are listed in `kvsuite.cli`."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal that cannot show a character is no error
            stream.reconfigure(errors="backslashreplace")
    try:
        app()
    except KvsuiteError as error:
        _fail(str(error), error.exit_code)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        _fail(f"{where}{error.strerror or error}; no file was left half-written", _BAD_INPUT)
    except MemoryError:
        _fail("out of memory: give a smaller --pool, or a larger --block-size", _BAD_INPUT)


def _fail(message: str, exit_code: int) -> None:
    typer.echo(f"kvsuite: {message}", err=True)
    sys.exit(exit_code)
