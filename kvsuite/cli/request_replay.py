"""`kvsuite replay` on an engine that schedules and samples by itself."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

from kvsuite.cli.sizes import format_bytes
from kvsuite.engine.registry import open_request_engine
from kvsuite.errors import ConfigError
from kvsuite.ledger.row import ABSENT
from kvsuite.replay.scheduler import SchedulerConfig

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvsuite.cli.replay_run import ReplayOrder
    from kvsuite.cli.trace_figures import Figure
    from kvsuite.engine.config import EngineConfig
    from kvsuite.engine.contract import EngineSpec, RequestEngine
    from kvsuite.ledger.timeline import PoolTimeline
    from kvsuite.replay.requests.driver import RequestReplay
    from kvsuite.trace.model import Trace

SHOWN_REFUSALS = 3
_LIMITS = ("max_sequences", "max_step_tokens")


def limited(order: ReplayOrder, engine: RequestEngine, config: EngineConfig) -> RequestEngine:
    """Return the engine with the limits asked for, opened again where they are not the defaults.

    **Raises:** `ConfigError` for what only makes sense where the suite schedules, or reads the cache.
    """
    for given, option in (
        (order.read_all, "--read-all"),
        (order.slots is not None, "--slots"),
        (order.scheduler.lookahead_tokens > 0, "--lookahead-tokens"),
    ):
        if given:
            raise ConfigError(
                f"{option}: {engine.spec.name} schedules and samples by itself and shows no slots: "
                "leave it out"
            )
    default = SchedulerConfig()
    asked = {name: getattr(order.scheduler, name) for name in _LIMITS}
    changed = {name: value for name, value in asked.items() if value != getattr(default, name)}
    if not changed:
        return engine
    return open_request_engine(order.engine, replace(config, options={**config.options, **changed}))


def request_engine_figures(spec: EngineSpec, scheduler: SchedulerConfig) -> Iterator[Figure]:
    """Yield what runs: engine, layout, pools, and that the engine schedules."""
    yield "engine", f"{spec.name} {spec.version}, {spec.layout}"
    for pool in spec.pools:
        size = format_bytes(pool.pool_bytes)
        yield f"pool {pool.key}", f"{pool.num_blocks:,} blocks of {pool.block_size} tokens, {size}"
    limits = ", ".join(f"{name} {spec.effective[name]}" for name in _LIMITS if name in spec.effective)
    own = f"the engine's own{f' ({limits})' if limits else ''}"
    yield "scheduler", f"{own}; requests arrive by steps of {scheduler.step_us / 1000:g} ms"


def request_figures(trace: Trace, done: RequestReplay) -> Iterator[Figure]:
    """Yield what was asked, how it ended, and the blocks in use, as far as they were seen."""
    endings = Counter("did not end" if o.ending is None else o.ending.value for o in done.outcomes)
    yield "requests", ", ".join(f"{count:,} {name}" for name, count in sorted(endings.items()))
    for title, found in (("asked otherwise", done.changed), ("not asked", done.dropped)):
        for reason, count in found.items():
            yield title, f"{count:,} of {len(trace):,}: {reason}"
    for request_id, why in list(done.refused.items())[:SHOWN_REFUSALS]:
        yield "refused", f"{request_id}: {why}"
    if len(done.refused) > SHOWN_REFUSALS:
        yield "refused", f"{len(done.refused) - SHOWN_REFUSALS:,} more"
    for pool in done.timeline.pools:
        yield _peak(pool)
    yield "content", "unchecked: the slots are the engine's own"


def closing_lines(done: RequestReplay) -> Iterator[tuple[str, str]]:
    """Yield what held at every step, as far as it could be judged, each line with its style."""
    broken = {violation.invariant for violation in done.violations}
    unjudged = {law.invariant for law in done.not_judged}
    for law, text in (
        ("used", "blocks in use follow from the lengths"),
        ("closure", "pool closes"),
    ):
        if law not in broken | unjudged:
            yield f"{text} at every step: {len(done.timeline):,} steps", "green"
    if not {"drain", "progress"} & broken and "used" not in unjudged:
        yield "all blocks returned", "green"


def _peak(pool: PoolTimeline) -> Figure:
    used = pool.column("live_blocks")
    seen = used[used != ABSENT]
    if not len(seen):
        return "peak", "blocks in use cannot be seen"
    peak, spec = int(seen.max()), pool.spec
    return (
        "peak",
        f"{peak:,} of {spec.num_blocks:,} blocks, {format_bytes(peak * spec.block_bytes)} "
        f"({peak / spec.num_blocks:.1%} of the pool)",
    )
