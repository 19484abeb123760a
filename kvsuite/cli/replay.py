"""`kvsuite replay`: one trace through one engine, every step accounted for."""

from typing import Annotated

import typer

from kvsuite.cli import options as o


def replay(
    trace: o.TraceArgument = o.EMBEDDED_TRACE,
    engine: o.EngineName = "reference",
    block_size: Annotated[int, typer.Option(help="Tokens a block has room for.")] = 16,
    pool: Annotated[
        str | None,
        typer.Option(help=f"20GiB, 512MiB, '4096 blocks' or bytes.  {o.POOL_DEFAULTS}"),
    ] = None,
    model: o.Model = "llama-3.1-8b",
    dtype: o.DtypeName = None,
    layers: o.Layers = None,
    tp: o.TensorParallel = 1,
    watermark_blocks: o.WatermarkBlocks = 0,
    no_prefix_cache: o.NoPrefixCache = False,
    max_model_tokens: o.MaxModelTokens = None,
    option: o.EngineOption = None,
    max_sequences: o.MaxSequences = 256,
    max_step_tokens: o.MaxStepTokens = 8192,
    step: o.Step = "50ms",
    lookahead_tokens: Annotated[
        int, typer.Option(min=0, help="Draft tokens asked for beyond each one decoded, where claimed.")
    ] = 0,
    slots: Annotated[
        str | None, typer.Option(help="probe (NumPy) or full (torch).  [default: probe; full on a GPU]")
    ] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:N or auto.")] = "cpu",
    read_all: Annotated[
        bool,
        typer.Option(
            "--read-all",
            help="For short traces: read every live token at every step, hold every answer against a model.",
        ),
    ] = False,
    trace_block_size: o.TraceBlockSize = None,
    time_unit: o.TimeUnit = None,
    tail: o.Tail = None,
    format: o.Format = None,
    sort: o.Sort = False,
    limit: o.Limit = None,
    overlay: o.Overlay = None,
    overlay_seed: o.OverlaySeed = 0,
    repeat: o.Repeat = 1,
    out: o.Out = None,
) -> None:
    """Replay a trace through an engine, every step accounted for.

    Prints the ledger's figures, writes record and report. Exit code 1 when a law is broken.
    """
    from kvsuite.cli.replay_run import ReplayOrder, run
    from kvsuite.cli.setup import CacheOptions, TraceOptions, parse_engine_options
    from kvsuite.cli.sizes import parse_duration_us, parse_pool
    from kvsuite.replay.scheduler import SchedulerConfig

    order = ReplayOrder(
        trace=trace,
        trace_options=TraceOptions(
            trace_block_size=trace_block_size,
            time_unit=time_unit,
            tail=tail,
            format=format,
            sort=sort,
            limit=limit,
            overlays=tuple(overlay or ()),
            overlay_seed=overlay_seed,
            repeat=repeat,
        ),
        cache=CacheOptions(
            model=model,
            dtype=dtype,
            layers=layers,
            tp=tp,
            watermark_blocks=watermark_blocks,
            prefix_cache=not no_prefix_cache,
            max_model_tokens=max_model_tokens,
            options=parse_engine_options(option or ()),
        ),
        scheduler=SchedulerConfig(max_sequences, max_step_tokens, parse_duration_us(step), lookahead_tokens),
        engine=engine,
        block_size=block_size,
        pool=parse_pool(o.default_pool(trace) if pool is None else pool),
        slots=slots,
        device=device,
        read_all=read_all,
        out=out,
    )
    raise typer.Exit(run(order))
