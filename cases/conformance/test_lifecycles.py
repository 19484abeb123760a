"""Any lifecycle, against a model of its own: requests, prefixes, forks, cancels, tiny pools, chunks.

A failure shrinks to the smallest lifecycle that still fails, and ends with it as a canonical trace file and
the command that replays it.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from kvsuite.engine.contract import Capability
from kvsuite.errors import ConfigError, EngineError, InvariantViolation
from kvsuite.plugin.replays import violation_text
from kvsuite.replay.batch import SchedulerConfig
from kvsuite.replay.judged import judged_replay
from kvsuite.trace.model import TraceSource
from kvsuite.trace.rows import Row, trace_of
from kvsuite.trace.writer import canonical_lines

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvsuite.engine.contract import Engine, EngineSpec
    from kvsuite.plugin.replays import EngineOpener
    from kvsuite.trace.model import Trace

STEP_MS = 50
SLOW_STEPS = 100_000
EXAMPLES_A_ROUND = 400
BLOCK_SIZES = [1, 2, 3, 4, 8]
GAPS = [0, 0, 1, 2, 9]
"""Steps between arrivals: at once, while the one before runs, and after it has ended."""
FAMILIES = 2
"""Kinds of prompts; those of one kind begin alike."""
MOSTLY = [True, True, True, False]
SCOPES: list[list[str | None]] = [[None], [None, "adapter"]]
"""What the requests of a lifecycle are computed under: all alike, or some by an adapter."""
BURSTS = [0, 0, 0, 1, 2]
ROOMY = 512
"""Token budget of a step where prompts cannot be cut."""


@dataclass(frozen=True, slots=True)
class Lifecycle:
    """What is replayed, and on what."""

    trace: Trace
    block_size: int
    num_blocks: int
    prefix_cache: bool
    scheduler: SchedulerConfig

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """Keep hypothesis from printing columns: `play` says it better."""
        del cycle
        printer.text(f"a lifecycle of {len(self.trace)} requests")

    def open(self, open_engine: EngineOpener) -> Engine:
        """Return a fresh engine for it."""
        longest = int((self.trace.prompt_tokens + self.trace.output_tokens).max())
        return open_engine(
            block_size=self.block_size,
            num_blocks=self.num_blocks,
            prefix_cache=self.prefix_cache,
            max_model_tokens=longest,
            trace=self.trace,
        )

    def told(self, engine_name: str) -> str:
        """Return the trace file, line by line, and the command that replays it."""
        file = canonical_lines(self.trace).decode()
        return (
            f"the smallest lifecycle found, to be saved as lifecycle.jsonl:\n{file}"
            f"replay it: {self.command(engine_name)}"
        )

    def command(self, engine_name: str) -> str:
        """Return the command line that replays it from a file."""
        words = [
            f"kvsuite replay lifecycle.jsonl --engine {engine_name} --model tiny",
            f"--block-size {self.block_size} --pool '{self.num_blocks} blocks'",
            f"--max-sequences {self.scheduler.max_sequences}",
            f"--max-step-tokens {self.scheduler.max_step_tokens} --read-all",
        ]
        words += [] if self.prefix_cache else ["--no-prefix-cache"]
        drafts = self.scheduler.lookahead_tokens
        return " ".join(words + ([f"--lookahead-tokens {drafts}"] if drafts else []))


@st.composite
def lifecycles(draw: st.DrawFn, spec: EngineSpec) -> Lifecycle:
    """Draw what ``spec`` claims: without a capability nothing is drawn that would need it."""
    size = draw(st.sampled_from(BLOCK_SIZES))
    scopes = draw(st.sampled_from(SCOPES))
    rows: list[Row] = []
    at_step = 0
    for number in range(draw(st.integers(1, 7))):
        at_step += draw(st.sampled_from(GAPS))
        rows.append(draw(requests(f"r{number}", at_step, size, scopes)))
        if spec.claims(Capability.FORK):
            rows += draw(children(rows[-1]))
    demand = [-(-(row.input_length + row.output_length) // size) for row in rows]
    kept_back = sum(pool.never_allocatable_blocks for pool in spec.pools)
    roomy = sum(demand) + kept_back + 1
    tight = st.integers(max(demand), max(demand) + 3) | st.integers(min(demand), sum(demand))
    tiny = draw(tight) + kept_back if spec.claims(Capability.PREEMPTION) else roomy
    sequences = draw(st.integers(1, 8))
    chunked = spec.claims(Capability.CHUNKED_PREFILL)
    budget = draw(st.integers(sequences, 4 * size + 8)) if chunked else ROOMY
    drafts = draw(st.integers(0, size)) if spec.claims(Capability.LOOKAHEAD) else 0
    return Lifecycle(
        trace=trace_of(rows, TraceSource("drawn", "lifecycle"), block_size=size),
        block_size=size,
        num_blocks=tiny,
        prefix_cache=draw(st.sampled_from(MOSTLY)) if spec.claims(Capability.PREFIX_CACHE) else False,
        scheduler=SchedulerConfig(sequences, max(budget, sequences), STEP_MS * 1000, drafts),
    )


@st.composite
def requests(draw: st.DrawFn, name: str, at_step: int, size: int, scopes: list[str | None]) -> Row:
    """Draw one request; lengths cluster around block boundaries, prompts of a family begin alike."""
    edge = draw(st.integers(0, 3)) * size + draw(st.integers(-1, 2))
    tokens = max(1, edge)
    answers = draw(st.integers(0, 2 * size + 2))
    shared = draw(st.sampled_from([0, tokens // size, -(-tokens // size)]))
    family = draw(st.integers(0, FAMILIES - 1))
    ids: list[int | str] = [
        f"f{family}.{block}" if block < shared else f"{name}.{block}" for block in range(-(-tokens // size))
    ]
    return Row(
        request_id=name,
        timestamp=at_step * STEP_MS,
        input_length=tokens,
        output_length=answers,
        hash_ids=ids if shared else None,
        cancel_after=draw(st.none() | st.integers(0, answers)),
        scope=draw(st.sampled_from(scopes)),
    )


@st.composite
def children(draw: st.DrawFn, parent: Row) -> list[Row]:
    """Draw up to two samples of a request, forked anywhere from the end of its prompt."""
    return [
        Row(
            request_id=f"{parent.request_id}.{number}",
            timestamp=parent.timestamp,
            input_length=parent.input_length,
            output_length=parent.output_length,
            parent=parent.request_id,
            fork="sample",
            fork_at=parent.input_length + draw(st.integers(0, parent.output_length)),
        )
        for number in range(draw(st.sampled_from(BURSTS)))
    ]


def claims(open_engine: EngineOpener) -> EngineSpec:
    """Return what the engine under test claims."""
    one = trace_of(
        [Row(timestamp=0, input_length=1, output_length=0)], TraceSource("one", "one"), block_size=1
    )
    return open_engine(block_size=4, num_blocks=64, max_model_tokens=256, trace=one).spec


def play(lifecycle: Lifecycle, open_engine: EngineOpener) -> int:
    """Replay one lifecycle and return its steps; a broken law is raised with all it takes to see it again.

    So is a crash of the engine: as the error that it is, and not as a broken law.
    """
    try:
        engine = lifecycle.open(open_engine)
    except ConfigError:
        return 0  # a pool or a block size that this engine refuses from the start
    try:
        done = judged_replay(lifecycle.trace, engine, scheduler=lifecycle.scheduler)
    except EngineError as error:
        raise EngineError(f"{error}\n{lifecycle.told(open_engine.engine_name)}") from error
    if done.violations:
        raise InvariantViolation(f"{violation_text(done)}\n{lifecycle.told(open_engine.engine_name)}")
    return len(done.timeline)


QUICK: dict[str, Any] = {
    "deadline": None,
    "suppress_health_check": list(HealthCheck),
    "phases": [Phase.generate, Phase.shrink],
    "report_multiple_bugs": False,
    "print_blob": False,
}


def test_any_lifecycle_keeps_every_law(open_engine: EngineOpener) -> None:
    """A hundred drawn lifecycles, the same ones each time."""
    spec = claims(open_engine)

    @settings(max_examples=100, **QUICK)
    @given(lifecycles(spec))
    def law(lifecycle: Lifecycle) -> None:
        play(lifecycle, open_engine)

    law()


@pytest.mark.slow
def test_100_000_steps_of_drawn_lifecycles_keep_every_law(
    open_engine: EngineOpener, summary_line: Callable[[str], None]
) -> None:
    """Round after round of new lifecycles, until the engine has taken 100,000 steps."""
    spec = claims(open_engine)
    steps = drawn = rounds = 0
    started_s = time.perf_counter()
    while steps < SLOW_STEPS:
        rounds += 1

        @seed(rounds)
        @settings(max_examples=EXAMPLES_A_ROUND, **QUICK)
        @given(lifecycles(spec))
        def law(lifecycle: Lifecycle) -> None:
            nonlocal steps, drawn
            steps += play(lifecycle, open_engine)
            drawn += 1

        before = steps
        law()
        assert steps > before, f"round {rounds} took no step: the engine refuses every pool that is drawn"
    took_s = time.perf_counter() - started_s
    summary_line(
        f"PASS: {steps:,} steps of {drawn:,} drawn lifecycles in {took_s:.0f} s, no law broken "
        f"({open_engine.engine_name})"
    )
