"""A sliding layer's ring, through the engine's own indices: which token does a slot hold when it is read?"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import pytest

from kvsuite.engine.snapshot import PoolKind
from kvsuite.replay.driver import replay
from kvsuite.trace.load import load_trace
from kvsuite.trace.request import RequestId
from kvsuite.trace.tokens import TokenContent, TokenRun
from tests.adapters.transformers.built import transformers

if TYPE_CHECKING:
    from kvsuite.engine.contract import SupportsSlots

A = RequestId("a")
WINDOW = 8
DECODE = [3, *[1] * 14]
LONG_PROMPT = [20, *[1] * 4]
CHUNKS = [5] * 4


def wrong_reads(version: str, chunks: list[int]) -> list[tuple[int, list[int | None], list[int]]]:
    """Write each token's position to the slot the engine gives; return what is read in place of the window.

    The token after n sees itself and the W - 1 before it: positions n - W + 1 to n - 1 are due.
    """
    engine = transformers(version, block_size=4, options={"window_tokens": WINDOW})
    slots = cast("SupportsSlots", engine)
    held: dict[int, int] = {}
    wrong: list[tuple[int, list[int | None], list[int]]] = []
    length = 0
    for step, tokens in enumerate(chunks):
        run = TokenRun(TokenContent((7,), ()), length, length + tokens)
        if length:
            assert engine.extend(A, run)
        else:
            assert engine.admit(A, run, first_chunk_tokens=tokens).accepted
        (written,) = slots.write_slots(A)
        held.update(zip(written.tolist(), range(length, length + tokens), strict=True))
        length += tokens
        (read,) = slots.read_slots(A)
        found, due = [held.get(slot) for slot in read.tolist()], [*range(max(0, length - WINDOW + 1), length)]
        if found != due:
            wrong.append((length, found, due))
        engine.launched(step)
        engine.done(step, {A: length})
    return wrong


@pytest.mark.parametrize("version", ["5.12.1", "5.15.1"])
def test_the_newest_token_is_missed_past_the_window(version: str) -> None:
    """huggingface/transformers #47708: at 8 tokens 0..6 are read, and 1..7 are due."""
    found = wrong_reads(version, DECODE)
    assert found[0] == (8, [0, 1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 5, 6, 7])
    assert [length for length, _, _ in found] == [*range(8, 18)]


@pytest.mark.parametrize("version", ["5.16.1", "5.24.0"])
@pytest.mark.parametrize("chunks", [DECODE, LONG_PROMPT, CHUNKS], ids=["decode", "long prompt", "chunks"])
def test_the_window_is_read_since_then(version: str, chunks: list[int]) -> None:
    assert wrong_reads(version, chunks) == []


@pytest.mark.parametrize(("tokens", "blocks"), [(3, 1), (4, 1), (5, 2), (8, 2), (9, 2), (40, 2)])
def test_a_ring_holds_its_window_and_no_more(tokens: int, blocks: int) -> None:
    engine = transformers("5.24.0", block_size=4, options={"window_tokens": WINDOW})
    (pool,) = engine.spec.pools
    assert (pool.kind, pool.window_tokens) == (PoolKind.RING, WINDOW)
    assert engine.admit(A, TokenRun(TokenContent((7,), ()), 0, tokens), first_chunk_tokens=tokens).accepted
    (shot,) = engine.snapshot()
    assert len(shot.table(0)) == blocks


def test_every_law_holds_over_rings() -> None:
    """32 tokens of each sequence have slots; what is longer is dropped, and what is held reads as written."""
    trace = load_trace("churn")
    done = replay(trace, transformers("5.24.0", usable_blocks=400, options={"window_tokens": 32}))
    assert done.violations == ()
    assert done.content.mismatches == 0
    (pool,) = done.timeline.pools
    assert (pool.column("payload") + pool.column("window_dropped") == pool.column("logical")).all()
    assert (pool.column("payload") <= 32 * pool.column("running")).all()
    assert pool.column("window_dropped").max() > 0
