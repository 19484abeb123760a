"""`kvsuite trace`: what a trace holds, its content hash, its canonical form."""

from pathlib import Path
from typing import Annotated

import typer

from kvsuite.cli import options as o

app = typer.Typer(help="Look into a trace, hash it, convert it.", no_args_is_help=True)


@app.command()
def info(
    trace: o.TraceArgument,
    trace_block_size: o.TraceBlockSize = None,
    time_unit: o.TimeUnit = None,
    tail: o.Tail = None,
    format: o.Format = None,
    sort: o.Sort = False,
    limit: o.Limit = None,
    overlay: o.Overlay = None,
    overlay_seed: o.OverlaySeed = 0,
    repeat: o.Repeat = 1,
) -> None:
    """Print rows, lengths, span, sharing, forks and cancels, and the content hash."""
    from kvsuite.cli.output import print_figures
    from kvsuite.cli.setup import TraceOptions, open_trace
    from kvsuite.cli.trace_figures import info_figures

    options = TraceOptions(
        trace_block_size=trace_block_size,
        time_unit=time_unit,
        tail=tail,
        format=format,
        sort=sort,
        limit=limit,
        overlays=tuple(overlay or ()),
        overlay_seed=overlay_seed,
        repeat=repeat,
    )
    print_figures(info_figures(trace, open_trace(trace, options), limit))


@app.command("hash")
def hash_(
    trace: o.TraceArgument,
    trace_block_size: o.TraceBlockSize = None,
    time_unit: o.TimeUnit = None,
    tail: o.Tail = None,
    format: o.Format = None,
    sort: o.Sort = False,
) -> None:
    """Print the content hash alone."""
    from kvsuite.cli.output import print_line
    from kvsuite.cli.setup import TraceOptions, open_trace
    from kvsuite.trace.identity import content_hash

    options = TraceOptions(
        trace_block_size=trace_block_size, time_unit=time_unit, tail=tail, format=format, sort=sort
    )
    print_line(content_hash(open_trace(trace, options)))


@app.command()
def convert(
    trace: o.TraceArgument,
    out: Annotated[Path, typer.Argument(help="File to write; gzipped where it ends in .gz.")],
    to: Annotated[str, typer.Option(help="canonical (without loss) or mooncake.")] = "canonical",
    trace_block_size: o.TraceBlockSize = None,
    time_unit: o.TimeUnit = None,
    tail: o.Tail = None,
    format: o.Format = None,
    sort: o.Sort = False,
    limit: o.Limit = None,
    overlay: o.Overlay = None,
    overlay_seed: o.OverlaySeed = 0,
    repeat: o.Repeat = 1,
    accept_losses: Annotated[
        bool, typer.Option("--accept-losses", help="Write Mooncake although it cannot carry everything.")
    ] = False,
) -> None:
    """Write a trace in the canonical form, or as plain Mooncake rows with its losses named."""
    from kvsuite.cli.output import print_figures
    from kvsuite.cli.setup import TraceOptions, open_trace
    from kvsuite.errors import ConfigError
    from kvsuite.trace.identity import content_hash
    from kvsuite.trace.writer import FORMATS, export_mooncake, write_trace

    if to not in FORMATS:
        raise ConfigError(f"cannot write format {to!r}: expected one of {', '.join(FORMATS)}")
    options = TraceOptions(
        trace_block_size=trace_block_size,
        time_unit=time_unit,
        tail=tail,
        format=format,
        sort=sort,
        limit=limit,
        overlays=tuple(overlay or ()),
        overlay_seed=overlay_seed,
        repeat=repeat,
    )
    opened = open_trace(trace, options)
    losses: tuple[str, ...] = ()
    if to == "mooncake":
        losses = export_mooncake(opened, out, accept_losses=accept_losses)
    else:
        write_trace(opened, out)
    label = "hash before losses" if losses else "content hash"
    print_figures(
        [(label, content_hash(opened)), *(("lost", loss) for loss in losses), ("written", str(out))]
    )
