"""Forks: what is shared, what each writer copies, and what is left of the saving afterwards.

For ``m`` children forked at ``n`` tokens in blocks of ``b``, once all ``m + 1`` have written: the
``floor(n/b)`` full blocks stay shared, and all but the last writer copy ``n mod b`` tokens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from kvsuite.engine.contract import Capability
from kvsuite.ledger.sharing import family_blocks, family_net_tokens
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
    assert pool.column("live_blocks")[:2].tolist() == list(family_blocks(children, tokens, BLOCK))
    assert pool.column("copied")[:2].tolist() == [0, copied]
    assert pool.column("private_transitions")[:2].tolist() == [0, children if tail else 0]
    assert pool.column("shared_blocks")[1] == full
    (kin,) = done.fork_families
    assert kin.children == children
    assert kin.copies == (children if tail else 0)
    assert kin.copied_tokens * kin.bytes_per_token == copied * pool.spec.bytes_per_token
    assert kin.net_tokens == family_net_tokens(children, tokens, BLOCK)


@pytest.mark.requires(Capability.COPIES_ITSELF)
@pytest.mark.parametrize("children", [1, 7])
@pytest.mark.parametrize("tokens", [15, 17, 33])
def test_an_engine_that_copies_by_itself_is_read_in_its_own_tensors(
    kv_replay: Replayer, children: int, tokens: int
) -> None:
    """No operation tells of its copies: tables show which are due, and its own tensors whether they came."""
    done = kv_replay(family(children, tokens), block_size=BLOCK, num_blocks=64)
    assert done.content.mode == "engine"
    assert done.timeline.pools[0].total("copied") == children * (tokens % BLOCK)
    assert done.content.tokens_read > done.content.tokens_written > 0


def test_a_burst_inside_the_first_block_costs_more_than_it_saves(kv_replay: Replayer) -> None:
    """15 tokens shared by 8: after the burst nothing is shared, and 7 times 15 tokens were copied."""
    (kin,) = kv_replay(family(7, 15), block_size=BLOCK, num_blocks=64, slots="probe").fork_families
    assert kin.net_tokens == -7 * 15
    assert kin.net_bytes == -7 * 15 * kin.bytes_per_token


def test_a_fork_of_a_fork_counts_in_its_family(kv_replay: Replayer) -> None:
    """Forked at 18 and, of the child, at 20: copies of 2 and 4 tokens, and 2 * 16 stay shared."""
    shape: dict[str, Any] = {"timestamp": 0, "input_length": 18, "output_length": 8}
    rows = [
        Row(request_id="a", **shape),
        Row(request_id="b", parent="a", fork="sample", fork_at=18, **shape),
        Row(request_id="c", parent="b", fork="sample", fork_at=20, **shape),
    ]
    trace = trace_of(rows, TraceSource("by hand", "grandchild"), block_size=BLOCK)
    done = kv_replay(trace, block_size=BLOCK, num_blocks=16, slots="probe")
    (kin,) = done.fork_families
    assert (kin.root, kin.children, kin.copies, kin.copied_tokens) == ("a", 2, 2, 2 + 4)
    assert kin.net_tokens == 2 * BLOCK - (2 + 4)
    assert done.timeline.pools[0].total("private_transitions") == 2
