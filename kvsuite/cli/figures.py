"""The figures of one replay, as lines of a name and a value."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from kvsuite.cli.sizes import format_bytes
from kvsuite.engine.contract import Capability
from kvsuite.ledger.invariants import first_of_each
from kvsuite.sweep.lengths import static_slack_share
from kvsuite.trace.model import ForkKind

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvsuite.cli.trace_figures import Figure
    from kvsuite.engine.contract import EngineSpec
    from kvsuite.ledger.timeline import PoolTimeline
    from kvsuite.replay.driver import Replay
    from kvsuite.replay.scheduler import SchedulerConfig
    from kvsuite.trace.model import Trace


def engine_figures(spec: EngineSpec, scheduler: SchedulerConfig) -> Iterator[Figure]:
    """Yield what runs: engine, layout, pools, scheduler."""
    yield "engine", f"{spec.name} {spec.version}, {spec.layout}"
    for pool in spec.pools:
        yield (
            f"pool {pool.key}",
            f"{pool.num_blocks:,} blocks of {pool.block_size} tokens, {format_bytes(pool.pool_bytes)} "
            f"({pool.bytes_per_token:,} bytes a token)",
        )
    yield (
        "scheduler",
        f"{scheduler.max_sequences} sequences, {scheduler.max_step_tokens:,} tokens a step, "
        f"steps of {scheduler.step_us / 1000:g} ms",
    )


def replay_figures(trace: Trace, done: Replay) -> Iterator[Figure]:
    """Yield what happened: endings, memory of each pool, content, pressure, sharing."""
    endings = Counter(outcome.ending.value for outcome in done.outcomes if outcome.ending is not None)
    yield (
        "requests",
        ", ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in sorted(endings.items())),
    )
    for pool in done.timeline.pools:
        yield from _pool_figures(pool)
    lengths = trace.prompt_tokens + trace.output_tokens
    for size in sorted({pool.spec.block_size for pool in done.timeline.pools}):
        share = static_slack_share(lengths, size)
        yield "static tail slack", f"{share:.2%} at block {size}, each request at its final length"
    content = done.content
    yield (
        "content",
        f"{content.tokens_written:,} tokens written, {content.tokens_read:,} read back, "
        f"{content.mismatches:,} mismatches ({content.mode} slots)",
    )
    yield from _pressure_figures(done)
    yield from _sharing_figures(trace, done)


def verdict_lines(done: Replay, held: Iterator[tuple[str, str]] | None = None) -> Iterator[tuple[str, str]]:
    """Yield what was judged, each line with its style: what held, what was not judged, laws broken."""
    yield from _held(done) if held is None else held
    for law in done.not_judged:
        yield f"not judged: {law.invariant} in pool {law.pool}, {law.absent} cannot be seen", "yellow"
    for text in violation_lines(done):
        yield text, "red"


def _held(done: Replay) -> Iterator[tuple[str, str]]:
    broken = {violation.invariant for violation in done.violations}
    if "closure" not in broken:
        yield f"pool closes at every step: {len(done.timeline):,} steps", "green"
    if "drain" not in broken:
        yield "all blocks returned", "green"


def violation_lines(done: Replay) -> Iterator[str]:
    """Yield the first violation of each broken law, with how many more there are."""
    for text in first_of_each(done.violations):
        yield f"VIOLATED {text}"


def _pool_figures(pool: PoolTimeline) -> Iterator[Figure]:
    spec = pool.spec
    peak = pool.peak("live_blocks")
    where = "" if spec.key.group == 0 and spec.key.tier == "device" else f" {spec.key}"
    yield (
        f"peak{where}",
        f"{peak:,} of {spec.num_blocks:,} blocks, {format_bytes(peak * spec.block_bytes)} "
        f"({peak / spec.num_blocks:.1%} of the pool)",
    )
    sums = {name: int(pool.column(name).sum()) for name in ("payload", "slack", "over_reserved")}
    held, whole = sum(sums.values()), len(pool.rows) * spec.num_blocks * spec.block_size
    for name, part, base in (
        ("utilisation", sums["payload"], whole),
        ("allocation efficiency", sums["payload"], held),
        ("slack share", sums["slack"], held),
        ("over-reserved share", sums["over_reserved"], held),
    ):
        if base and (part or name != "over-reserved share"):
            of = "the pool" if base == whole else "what sequences hold"
            yield f"{name}{where}", f"{part / base:.2%} of {of}, mean over {len(pool.rows):,} steps"


def _pressure_figures(done: Replay) -> Iterator[Figure]:
    first = done.timeline.pools[0]
    yield "preemptions", f"{first.total('preempted'):,}, {first.total('recomputed'):,} tokens computed again"
    reasons = ", ".join(
        f"{count:,} {reason.value}"
        for reason, count in sorted(done.refusals.items(), key=lambda r: r[0].value)
    )
    yield (
        "refusals",
        f"{first.total('refused_admissions'):,} of admission{f' ({reasons})' if reasons else ''}, "
        f"{first.total('refused_growths'):,} of growth",
    )


def _sharing_figures(trace: Trace, done: Replay) -> Iterator[Figure]:
    first = done.timeline.pools[0]
    hit = first.total("hit")
    asked = int(trace.prompt_tokens.sum())
    share = f", {hit / asked:.2%} of the prompt tokens asked" if asked else ""
    resumed = first.total("resumed_hit")
    yield "prefix hits", f"{hit:,} tokens{share}; {resumed:,} when preempted sequences came back"
    families = done.fork_families
    inherits = int(np.isin(trace.fork_kind, [ForkKind.SAMPLE, ForkKind.BEAM]).sum())
    if inherits and not done.spec.claims(Capability.FORK):
        yield "forks", f"{inherits:,} replayed as requests of their own: {done.spec.name} does not claim FORK"
    elif families:
        net = sum(family.net_bytes for family in families)
        yield (
            "fork families",
            f"{len(families):,} with {sum(family.children for family in families):,} children, "
            f"{sum(family.copied_tokens for family in families):,} tokens copied, "
            f"net {format_bytes(net)} saved in all",
        )
