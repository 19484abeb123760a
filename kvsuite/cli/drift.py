"""`kvsuite drift`: what changed between engines, or between versions of one."""

from typing import Annotated

import typer

from kvsuite.cli import options as o


def drift(
    engines: Annotated[
        list[str],
        typer.Argument(
            metavar="ENGINE...",
            help="Two or more engines, older first, such as vllm@0.23.0; or one name with --from and --to.",
        ),
    ],
    from_version: Annotated[str | None, typer.Option("--from", help="Version to start from.")] = None,
    to_version: Annotated[str | None, typer.Option("--to", help="Version to end with, or newest.")] = None,
    all_versions: Annotated[
        bool, typer.Option("--all", help="Every version on the package index between --from and --to.")
    ] = False,
    trace: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TRACE",
            help=f"Trace file, or name of a built-in workload; repeatable.  [default: {o.EMBEDDED_TRACE}]",
        ),
    ] = None,
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
    """Say what changed between engines, or versions of one.

    Each is held against the one before it, on the same traces, configuration and scheduler.
    Exit code 0 when all are equal or only the blocks used differ, 1 when counts or broken laws differ,
    3 when a version cannot be had.
    """
    from kvsuite.cli.drift_run import DriftOrder, run
    from kvsuite.cli.setup import CacheOptions, TraceOptions, parse_engine_options
    from kvsuite.cli.sizes import parse_duration_us, parse_pool
    from kvsuite.replay.scheduler import SchedulerConfig

    order = DriftOrder(
        engines=tuple(engines),
        from_version=from_version,
        to_version=to_version,
        all_versions=all_versions,
        traces=tuple(trace or [o.EMBEDDED_TRACE]),
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
        scheduler=SchedulerConfig(max_sequences, max_step_tokens, parse_duration_us(step)),
        block_size=block_size,
        pool=None if pool is None else parse_pool(pool),
        out=out,
    )
    raise typer.Exit(run(order))
