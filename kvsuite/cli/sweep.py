"""`kvsuite sweep`: block sizes and contiguous controls on the same trace and the same bytes."""

from pathlib import Path
from typing import Annotated

import typer

from kvsuite.cli import options as o


def sweep(
    trace: o.TraceArguments,
    sizes: Annotated[
        str | None,
        typer.Option(metavar="B,B,...", help="Block sizes.  [default: powers of two from 1 to 256]"),
    ] = None,
    controls: Annotated[
        str | None,
        typer.Option(
            metavar="NAME,...",
            help="Contiguous controls, at least one; contiguous-one-block is as fast as paging.  "
            "[default: contiguous-max, contiguous-pow2, contiguous-exact; with --slo contiguous-one-block]",
        ),
    ] = None,
    engine: Annotated[
        str,
        typer.Option(metavar="NAME,...", help="Registered engines; `kvsuite engines` lists them."),
    ] = "reference",
    pool: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE,...",
            help=f"20GiB, 512MiB or bytes: the same for every option.  {o.POOL_DEFAULTS}",
        ),
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
    core: Annotated[
        str,
        typer.Option(
            help="What the reference engine runs on: compiled (ledger alone), step (content read back too), "
            "or auto: compiled where numba is installed."
        ),
    ] = "auto",
    workers: Annotated[
        str | None,
        typer.Option(
            metavar="WHERE",
            help="threads:N, processes:N, dask, dask:N, dask:ADDRESS or package.module:function.  "
            "[default: threads where all runs compiled, else processes; one a CPU]",
        ),
    ] = None,
    slo: Annotated[
        str | None,
        typer.Option(
            metavar="ttft=T,itl=T",
            help="Decide: budgets for the first token and between tokens, such as ttft=500ms,itl=50ms.",
        ),
    ] = None,
    calibration: Annotated[
        Path | None,
        typer.Option(
            help="Step costs of a device; without them this one is measured first, in about a minute."
        ),
    ] = None,
    decision: Annotated[
        Path | None,
        typer.Option(help="A stored decision.json: exit code 1 where it is stale or another option ships."),
    ] = None,
    vary: Annotated[
        str | None,
        typer.Option(
            metavar="NAME=V1,V2",
            help="Decide over this instead of block sizes: prefix-cache, watermark-blocks, max-sequences, "
            "max-step-tokens, pool, pool-policy, or an option of the engine's own. Needs one size.",
        ),
    ] = None,
    burst: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Samples that may fork and diverge at once: a size that bears fewer ships with sharing off.",
        ),
    ] = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Forget what an earlier run left in the folder.")
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
    """Replay block sizes and contiguous controls.

    All run on one pool in bytes, and are compared by slack, tables, admissions and occupancy. Several traces,
    pools or engines give rows for each. What is done is kept in the folder, and a second run goes on from
    there. The decision also needs latency: with --slo and --calibration each option gets a verdict, and
    decision.json is written beside the record.
    """
    from kvsuite.cli.setup import CacheOptions, TraceOptions, parse_engine_options
    from kvsuite.cli.sizes import parse_block_sizes, parse_duration_us, parse_pools
    from kvsuite.cli.sweep_decide import decision_order
    from kvsuite.cli.sweep_run import SweepOrder, run
    from kvsuite.replay.scheduler import SchedulerConfig
    from kvsuite.sweep.cells import CLOCKED_CONTROLS, DEFAULT_CONTROLS
    from kvsuite.sweep.plan import DEFAULT_SIZES

    usual_controls = DEFAULT_CONTROLS if slo is None else CLOCKED_CONTROLS
    order = SweepOrder(
        traces=tuple(trace),
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
        engines=tuple(engine.split(",")),
        sizes=DEFAULT_SIZES if sizes is None else parse_block_sizes(sizes),
        controls=usual_controls if controls is None else _names(controls),
        pools=parse_pools(o.default_pool(*trace) if pool is None else pool),
        core=core,
        workers=workers,
        fresh=fresh,
        out=out,
        decision=decision_order(slo, calibration, decision, vary, burst),
    )
    raise typer.Exit(run(order))


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())
