"""A sweep: each block size and each contiguous control replays one trace on one pool in bytes.

What comes out is the memory half of a decision. Latency is not measured here, so no option wins.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np

from kvsuite.engine.config import EngineConfig
from kvsuite.engine.contract import RefusalReason
from kvsuite.engine.registry import open_engine
from kvsuite.errors import ConfigError, EngineError
from kvsuite.record.schema import SweepLine, SweepRow
from kvsuite.replay.driver import Replay, replay

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kvsuite.cache.layout import Layout
    from kvsuite.engine.snapshot import Int64Array
    from kvsuite.ledger.timeline import PoolTimeline
    from kvsuite.replay.scheduler import SchedulerConfig
    from kvsuite.trace.model import Trace

DEFAULT_SIZES = tuple(2**power for power in range(9))
CONTROLS = ("contiguous-max", "contiguous-pow2", "contiguous-exact")
CONTROL_BLOCK_SIZE = 1
"""A control hands out single slots, in one unbroken run a sequence."""


@dataclass(frozen=True, slots=True)
class Option:
    """One way to cut the pool: an engine at a block size."""

    name: str
    engine: str
    block_size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepPlan:
    """What every option of a sweep has in common, and the options."""

    trace: Trace
    layout: Layout
    pool_bytes: int
    options: tuple[Option, ...]
    scheduler: SchedulerConfig
    prefix_cache: bool = True
    watermark_blocks: int = 0
    max_model_tokens: int | None = None
    """Most tokens a request without a cap may come to; the longest of the trace where none is given."""
    engine_options: Mapping[str, int | str | bool] = field(default_factory=dict)
    """The engine's own, see `EngineConfig.options`; a control has none."""

    def config(self, option: Option) -> EngineConfig:
        """Return how the engine of ``option`` is opened.

        **Raises:** `ConfigError` when the pool holds no block of that size.
        """
        control = option.engine in CONTROLS
        slots = self.pool_bytes // self.layout.bytes_per_token
        return EngineConfig(
            layout=self.layout,
            block_size=option.block_size,
            num_blocks=slots if control else self.layout.blocks_in(self.pool_bytes, option.block_size),
            prefix_cache=self.prefix_cache,
            watermark_blocks=self.watermark_blocks,
            max_model_tokens=self.max_model_tokens or longest_declared_tokens(self.trace),
            options={} if control else self.engine_options,
            trace=self.trace,
        )


@dataclass(frozen=True, slots=True)
class OptionResult:
    """A row of the sweep with the replay behind it; ``None`` where the option was refused."""

    option: Option
    row: SweepRow
    replay: Replay | None
    duration_s: float = 0.0


def sweep_options(
    engine: str, sizes: tuple[int, ...], controls: tuple[str, ...] = CONTROLS
) -> tuple[Option, ...]:
    """Return ``engine`` at each size, then the controls.

    **Raises:** `ConfigError` for a control that is none.
    """
    unknown = [control for control in controls if control not in CONTROLS]
    if unknown:
        raise ConfigError(f"{unknown[0]!r} is no contiguous control: expected one of {', '.join(CONTROLS)}")
    return (
        *(Option(f"block {size}", engine, size) for size in sizes),
        *(Option(control, control, CONTROL_BLOCK_SIZE) for control in controls),
    )


def longest_declared_tokens(trace: Trace) -> int:
    """Return the most tokens a request of ``trace`` may come to: prompt, and answer as declared."""
    declared = np.where(trace.max_output_tokens < 0, trace.output_tokens, trace.max_output_tokens)
    return int((trace.prompt_tokens + declared).max(initial=1))


def static_slack_share(lengths: Int64Array, block_size: int) -> float:
    """Return slack over allocated with every sequence at its length: ``1 - sum n / sum (ceil(n / b) b)``.

    >>> static_slack_share(np.array([16, 17]), 16)
    0.3125
    """
    allocated = int((-(-lengths // block_size) * block_size).sum())
    return (allocated - int(lengths.sum())) / allocated if allocated else 0.0


def run_option(
    plan: SweepPlan, option: Option, progress: Callable[[int, int], None] | None = None
) -> OptionResult:
    """Replay one option; an engine that refuses it gives a row with the reason."""
    try:
        engine = open_engine(option.engine, plan.config(option))
    except (ConfigError, EngineError) as refusal:
        return OptionResult(option, _refused_row(option, str(refusal)), None)
    if len(engine.spec.pools) != 1:
        reason = f"{len(engine.spec.pools)} pools: a sweep compares engines of one pool"
        return OptionResult(option, _refused_row(option, reason), None)
    started_s = perf_counter()
    done = replay(plan.trace, engine, scheduler=plan.scheduler, progress=progress)
    duration_s = perf_counter() - started_s
    lengths = plan.trace.prompt_tokens + plan.trace.output_tokens
    return OptionResult(option, sweep_row(option, done, lengths), done, duration_s)


def sweep_line(plan: SweepPlan, rows: list[SweepRow], *, trace: str) -> SweepLine:
    """Return the sweep as a line of the record; ``trace`` is the ref of the trace's own line."""
    return SweepLine(
        trace=trace,
        layout=str(plan.layout),
        pool_bytes=plan.pool_bytes,
        recipe=asdict(plan.scheduler)
        | {"prefix_cache": plan.prefix_cache, "watermark_blocks": plan.watermark_blocks},
        rows=rows,
    )


def sweep_row(option: Option, done: Replay, final_lengths: Int64Array) -> SweepRow:
    """Return the figures of one replay; shares are of sums over its steps, idle ones apart."""
    pool = done.timeline.pools[0]
    steps = len(done.timeline)
    held = _held_tokens(pool)
    return SweepRow(
        option=option.name,
        engine=option.engine,
        block_size=option.block_size,
        slack_share=_share(int(pool.column("slack").sum()), held),
        allocation_efficiency=_share(int(pool.column("payload").sum()), held),
        static_slack_share=static_slack_share(final_lengths, option.block_size),
        table_bytes_peak=pool.peak("table_entries") * pool.spec.table_entry_bytes,
        admitted=pool.total("admitted"),
        finished=pool.total("finished"),
        preempted=pool.total("preempted"),
        refused_admissions=pool.total("refused_admissions"),
        fragmentation_events=done.refusals.get(RefusalReason.NO_CONTIGUOUS_RUN, 0),
        peak_payload_tokens=pool.peak("payload"),
        mean_occupancy=_share(int(pool.column("live_blocks").sum()), steps * pool.spec.num_blocks),
        mean_running=_share(int(pool.column("running").sum()), steps),
        hit_tokens=pool.total("hit"),
        steps=steps,
    )


def _refused_row(option: Option, reason: str) -> SweepRow:
    return SweepRow(option=option.name, engine=option.engine, block_size=option.block_size, refused=reason)


def _held_tokens(pool: PoolTimeline) -> int:
    return int(sum(pool.column(name).sum() for name in ("payload", "slack", "over_reserved")))


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None
