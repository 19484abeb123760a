"""`kvsuite calibrate`: what a step costs on this device at each block size."""

from pathlib import Path
from typing import Annotated

import typer

from kvsuite.cli import options as o


def calibrate(
    model: o.Model = "llama-3.1-8b",
    dtype: o.DtypeName = None,
    layers: o.Layers = None,
    sizes: Annotated[
        str | None, typer.Option(help="Block sizes, such as 8,16,32.  [default: 1,2,4,...,256]")
    ] = None,
    kernel: Annotated[
        str | None,
        typer.Option(help="Attention kernel, such as c-plain; the first that runs here without it."),
    ] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:N or auto.")] = "cpu",
    rounds: Annotated[
        int | None, typer.Option(min=9, help="Times each call is timed.  [default: 9; 21 on a card]")
    ] = None,
    small: Annotated[
        bool,
        typer.Option("--small", help="A grid of seconds that says nothing of memory: to try things out."),
    ] = False,
    live: Annotated[
        str | None,
        typer.Option(
            metavar="TRACE", help="Also run decode batches of this trace, and hold the model to them."
        ),
    ] = None,
    live_steps: Annotated[int, typer.Option(min=1, help="Batches of --live at each block size.")] = 8,
    step: Annotated[
        str | None,
        typer.Option(
            help="Duration of a step of --live's replay.  [default: as modelled at the largest load]"
        ),
    ] = None,
    limit: o.Limit = None,
    out: Annotated[
        Path | None,
        typer.Option(help="File to write.  [default: reports/calibration-MODEL-KERNEL.json]"),
    ] = None,
) -> None:
    """Time what a step costs on this device at each block size, and fit a model to it.

    Times decode attention through shuffled tables beside the contiguous control, the rest of one real layer,
    the head, prefill chunks, the upload of block tables and the manager. On a CPU: one thread, its CPU time.
    """
    from kvsuite.cli.calibrate_run import CalibrateOrder, run
    from kvsuite.cli.setup import CacheOptions, TraceOptions
    from kvsuite.cli.sizes import parse_block_sizes, parse_duration_us
    from kvsuite.errors import ConfigError
    from kvsuite.sweep.plan import DEFAULT_SIZES

    needless = [name for name, value in {"--step": step, "--limit": limit}.items() if value is not None]
    if live is None and needless:
        raise ConfigError(f"{needless[0]} is of the replay behind --live: give --live TRACE, or leave it out")
    order = CalibrateOrder(
        model=model,
        layout=CacheOptions(model=model, dtype=dtype, layers=layers).layout(),
        sizes=DEFAULT_SIZES if sizes is None else parse_block_sizes(sizes),
        kernel=kernel,
        device=device,
        rounds=rounds,
        small=small,
        live=live,
        live_steps=live_steps,
        trace_options=TraceOptions(limit=limit),
        step_us=None if step is None else parse_duration_us(step),
        out=out,
    )
    raise typer.Exit(run(order))
