"""Forks: what is shared, what each writer copies, and what is left of the saving afterwards.

For ``m`` children forked at ``n`` tokens in blocks of ``b``, once all ``m + 1`` have written: the
``floor(n/b)`` full blocks stay shared, and all but the last writer copy ``n mod b`` tokens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kvsuite.engine.contract import Capability
from kvsuite.trace.model import TraceSource
from kvsuite.trace.rows import Row, trace_of

if TYPE_CHECKING:
    from kvsuite.plugin.replays import Replayer
    from kvsuite.trace.model import Trace

BLOCK = 16
pytestmark = pytest.mark.requires(Capability.FORK, Capability.COPY_ON_WRITE)


def family(children: int, tokens: int, answers: int = 2) -> Trace:
    """One parent of ``tokens`` prompt tokens and ``children`` samples of it, all with ``answers`` answers."""
    parent = Row(request_id="parent", timestamp=0, input_length=tokens, output_length=answers)
    samples = [
        Row(
            request_id=f"child{k}",
            timestamp=0,
            input_length=tokens,
            output_length=answers,
            parent="parent",
            fork="sample",
            fork_at=tokens,
        )
        for k in range(children)
    ]
    return trace_of(
        [parent, *samples], TraceSource("by hand", f"family{children}x{tokens}"), block_size=BLOCK
    )


@pytest.mark.parametrize("children", [1, 2, 7])
@pytest.mark.parametrize("tokens", [1, 15, 16, 17, 31, 32, 33])
def test_all_diverge_in_one_step(kv_replay: Replayer, children: int, tokens: int) -> None:
    done = kv_replay(family(children, tokens), block_size=BLOCK, num_blocks=64, slots="probe")
    pool = done.timeline.pools[0]
    full, tail = divmod(tokens, BLOCK)
    copied = children * tail
    assert pool.column("live_blocks")[:2].tolist() == [full + (tail > 0), full + children + 1]
    assert pool.column("copied")[:2].tolist() == [0, copied]
    assert pool.column("private_transitions")[:2].tolist() == [0, children if tail else 0]
    assert pool.column("shared_blocks")[1] == full
    (kin,) = done.fork_families
    assert kin.children == children
    assert kin.copies == (children if tail else 0)
    assert kin.net_tokens == children * full * BLOCK - copied


def test_a_burst_inside_the_first_block_costs_more_than_it_saves(kv_replay: Replayer) -> None:
    """15 tokens shared by 8: after the burst nothing is shared, and 7 times 15 tokens were copied."""
    (kin,) = kv_replay(family(7, 15), block_size=BLOCK, num_blocks=64, slots="probe").fork_families
    assert kin.net_tokens == -7 * 15
    assert kin.net_bytes == -7 * 15 * kin.bytes_per_token
