"""An engine against the reference on one trace: where both claim the same, both hold the same blocks.

A differential oracle: nothing here was recorded. Without sharing, a sequence of n tokens holds ceil(n / b)
blocks whoever allocates them; with a prefix cache of full blocks in an ample pool, what was computed before
is found, whoever looks it up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kvsuite.cache.layout import model_layout
from kvsuite.engine.config import EngineConfig
from kvsuite.engine.contract import Capability
from kvsuite.engine.registry import open_engine as open_any
from kvsuite.engine.snapshot import PoolKind
from kvsuite.errors import ConfigError
from kvsuite.ledger.agreement import Side, first_disagreement
from kvsuite.ledger.invariants import Violation, raise_violations
from kvsuite.replay.driver import replay
from kvsuite.replay.scheduler import SchedulerConfig
from kvsuite.trace.load import load_trace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kvsuite.plugin.replays import Replayer
    from kvsuite.replay.driver import Replay
    from kvsuite.trace.model import Trace

SIZES = (1, 8, 16, 32, 64, 128, 256)
FEWEST_SIZES = 3
"""Block sizes of `SIZES` that a paged engine has to accept, or nothing is shown."""
WHOLE_PROMPTS = SchedulerConfig(max_sequences=256, max_step_tokens=16_384, step_us=50_000)
CHUNKS = SchedulerConfig(max_sequences=256, max_step_tokens=256, step_us=50_000)
ORACLE = "reference"
SPARE_BLOCKS = 16

pytestmark = pytest.mark.requires(Capability.PAGED)


def ample_blocks(trace: Trace, block_size: int) -> int:
    """Return blocks for every request at its final length at once, and for the null blocks of any engine."""
    lengths = trace.prompt_tokens + trace.output_tokens
    return int((-(-lengths // block_size)).sum()) + SPARE_BLOCKS


def oracle(trace: Trace, block_size: int, scheduler: SchedulerConfig, *, prefix_cache: bool) -> Replay:
    config = EngineConfig(
        model_layout("tiny"), block_size, ample_blocks(trace, block_size), prefix_cache=prefix_cache
    )
    return replay(trace, open_any(ORACLE, config), scheduler=scheduler)


def each_size(
    kv_replay: Replayer, trace: Trace, scheduler: SchedulerConfig, refused: list[str], *, prefix_cache: bool
) -> Iterator[tuple[int, Replay]]:
    """Yield the replay in each block size the engine accepts; ``refused`` takes the others, with reasons."""
    for size in SIZES:
        blocks = ample_blocks(trace, size)
        try:
            done = kv_replay(
                trace,
                block_size=size,
                num_blocks=blocks,
                scheduler=scheduler,
                read_all=False,
                prefix_cache=prefix_cache,
            )
        except ConfigError as refusal:
            refused.append(f"{size} ({refusal})")
            continue
        yield size, done


def block_disagreements(trace: Trace, done: Replay, scheduler: SchedulerConfig) -> Iterator[Violation]:
    """Yield where a full pool and the reference part, one a pool."""
    for pool in done.timeline.pools:
        spec = pool.spec
        if spec.key.tier == "device" and spec.kind is PoolKind.FULL:
            known = oracle(trace, spec.block_size, scheduler, prefix_cache=False)
            found = first_disagreement(
                Side(ORACLE, known.timeline.steps, known.timeline.pools[0]),
                Side(done.spec.name, done.timeline.steps, pool),
            )
            if found is not None:
                said = f"in blocks of {spec.block_size}, {found}"
                yield Violation("agreement", found.step, str(spec.key), said)


def agree_on_blocks(
    kv_replay: Replayer, workload: str, scheduler: SchedulerConfig, say: Callable[[str], None]
) -> None:
    trace = load_trace(workload)
    refused: list[str] = []
    ran: list[int] = []
    for size, done in each_size(kv_replay, trace, scheduler, refused, prefix_cache=False):
        if not any(pool.kind is PoolKind.FULL for pool in done.spec.pools):
            pytest.skip("no pool holds the whole of a sequence")
        raise_violations(list(block_disagreements(trace, done, scheduler)))
        ran.append(size)
    report(kv_replay, f"blocks of {workload}", ran, refused, say)


def report(
    kv_replay: Replayer, what: str, ran: list[int], refused: list[str], say: Callable[[str], None]
) -> None:
    sizes = ", ".join(map(str, ran))
    said = f"; refused: {', '.join(refused)}" if refused else ""
    assert len(ran) >= FEWEST_SIZES, f"only blocks of {sizes or 'no size'} could be compared{said}"
    say(f"{kv_replay.engine_name} and {ORACLE} agree on the {what} in blocks of {sizes}{said}")


@pytest.mark.parametrize("workload", ["boundary", "cancel-burst"])
def test_same_blocks_at_every_step(
    kv_replay: Replayer, summary_line: Callable[[str], None], workload: str
) -> None:
    """Live blocks, payload and slack, at every step and block size."""
    agree_on_blocks(kv_replay, workload, WHOLE_PROMPTS, summary_line)


@pytest.mark.requires(Capability.CHUNKED_PREFILL)
def test_same_blocks_while_prompts_come_in_chunks(
    kv_replay: Replayer, summary_line: Callable[[str], None]
) -> None:
    """The same with 256 tokens a step: prompts wait, and come in parts."""
    agree_on_blocks(kv_replay, "cancel-burst", CHUNKS, summary_line)


@pytest.mark.requires(Capability.PREFIX_CACHE)
@pytest.mark.parametrize("workload", ["chat", "long-context"])
def test_same_hits_where_nothing_is_evicted(
    kv_replay: Replayer, summary_line: Callable[[str], None], workload: str
) -> None:
    """Each request finds as many tokens; those that share come steps apart, so keys may be published late."""
    trace = load_trace(workload)
    refused: list[str] = []
    ran: list[int] = []
    for size, done in each_size(kv_replay, trace, WHOLE_PROMPTS, refused, prefix_cache=True):
        device = [pool for pool in done.spec.pools if pool.key.tier == "device"]
        if len(device) > 1 or device[0].kind is not PoolKind.FULL:
            pytest.skip("hits of several groups, or of a window, are not those of one full pool")
        known = oracle(trace, device[0].block_size, WHOLE_PROMPTS, prefix_cache=True)
        pairs = zip(known.outcomes, done.outcomes, strict=True)
        wrong = [
            Violation(
                "agreement",
                mine.admitted_step,
                str(device[0].key),
                f"in blocks of {size}, request {mine.index} found {mine.hit_tokens} tokens, {ORACLE} "
                f"{theirs.hit_tokens}",
            )
            for theirs, mine in pairs
            if theirs.hit_tokens != mine.hit_tokens
        ]
        raise_violations(wrong)
        ran.append(size)
    report(kv_replay, f"hits of {workload}", ran, refused, summary_line)
