"""Every allocation refused once: the i-th call for all i, with the same state after as before, to the end."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kvsuite.engine.contract import Capability
from kvsuite.ledger.invariants import raise_violations
from kvsuite.replay.batch import SchedulerConfig
from kvsuite.replay.refusing import RefusingEngine
from kvsuite.trace.model import TraceSource
from kvsuite.trace.rows import Row, trace_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvsuite.plugin.replays import EngineOpener, Replayer
    from kvsuite.trace.model import Trace

BLOCK = 4
NUM_BLOCKS = 24


def lifecycle(*rows: Row) -> Trace:
    """Return a trace of a few requests, prefix ids of one block each."""
    return trace_of(list(rows), TraceSource("by hand", "refusals"), block_size=BLOCK)


def mixed() -> Trace:
    """Return four requests: two with a common prefix, one in chunks, one cancelled."""
    return lifecycle(
        Row(request_id="a", timestamp=0, input_length=9, output_length=5, hash_ids=[1, 2, 3]),
        Row(request_id="b", timestamp=0, input_length=21, output_length=2),
        Row(request_id="c", timestamp=100, input_length=10, output_length=4, hash_ids=[1, 2, 4]),
        Row(request_id="d", timestamp=150, input_length=3, output_length=6, cancel_after=2),
        Row(request_id="e", timestamp=900, input_length=12, output_length=1, hash_ids=[1, 2, 5]),
    )


def family() -> Trace:
    """Return a parent inside a block, and two samples of it that diverge at once."""
    parent = Row(request_id="p", timestamp=0, input_length=6, output_length=4)
    samples = [
        Row(
            request_id=f"s{k}",
            timestamp=0,
            input_length=6,
            output_length=4,
            parent="p",
            fork="sample",
            fork_at=6,
        )
        for k in range(2)
    ]
    return lifecycle(parent, *samples)


@pytest.mark.requires(Capability.PREEMPTION)
@pytest.mark.parametrize("make", [mixed, family])
@pytest.mark.parametrize("chunk", [8192, 8])
def test_a_refused_allocation_leaves_no_trace(
    open_engine: EngineOpener, kv_replay: Replayer, make: Callable[[], Trace], chunk: int
) -> None:
    """Whichever call is refused, nothing has changed, everybody ends as without it, and the pool is whole."""
    trace = make()
    scheduler = SchedulerConfig(max_sequences=8, max_step_tokens=chunk)

    def run(refuse_at: int | None) -> tuple[RefusingEngine, list[str]]:
        tokens = NUM_BLOCKS * BLOCK
        opened = open_engine(block_size=BLOCK, num_blocks=NUM_BLOCKS, max_model_tokens=tokens, trace=trace)
        engine = RefusingEngine(opened, refuse_at)
        done = kv_replay(trace, engine=engine, slots="probe", scheduler=scheduler)
        raise_violations(engine.violations)
        return engine, [str(outcome.ending) for outcome in done.outcomes]

    untouched, endings = run(None)
    assert untouched.calls > len(trace)
    for call in range(untouched.calls):
        engine, after = run(call)
        assert engine.refused is not None, f"call {call} of {untouched.calls} never came"
        assert after == endings, f"call {call} ({engine.refused}) was refused and requests end otherwise"
