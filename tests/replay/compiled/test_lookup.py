"""The look-up of prefixes alone, against a plain LRU and against the figures of kvcache-simulator 0.1.3.

The rule that both follow: requests one after the other; the leading blocks that are there are hits, the last
and partial one too, and a whole prompt may hit; then the whole prompt is there. What has to go for it goes by
least recent use, and of one request's blocks the last goes first.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from typing import TYPE_CHECKING, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvsuite.errors import ConfigError
from kvsuite.replay.compiled.lookup import prefix_lookup
from kvsuite.trace.load import load_trace
from kvsuite.trace.model import TraceSource
from kvsuite.trace.rows import Row, trace_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

BLOCK_SIZE = 4
SOURCE = TraceSource(format="made", name="lookup")
MOONCAKE = "mooncake/conversation_trace.jsonl"
MOONCAKE_BLOCK_SIZE = 512


class Asked(NamedTuple):
    """A prompt of so many tokens, and an id for each block of it that stands for that block's tokens."""

    ids: Sequence[int]
    prompt_tokens: int


def plain_lru(asked: Iterable[Asked], block_size: int, budget: int) -> list[int]:
    """Return the hit tokens of each request; a block is known by all ids up to its own."""
    there: OrderedDict[tuple[int, int], None] = OrderedDict()
    nodes: dict[tuple[int, int], int] = {}
    found = []
    for ids, prompt_tokens in asked:
        path, node = [], 0
        for at, block in enumerate(ids):
            node = nodes.setdefault((node, block), len(nodes) + 1)
            path.append((node, min((at + 1) * block_size, prompt_tokens)))
        hits = next((at for at, key in enumerate(path) if key not in there), len(path))
        found.append(min(hits * block_size, prompt_tokens))
        for key in path[:hits]:
            there.move_to_end(key)
        for key in path[hits:]:
            if len(there) == budget:
                there.popitem(last=False)
            there[key] = None
        for key in reversed(path):
            there.move_to_end(key)
    return found


def looked_up(asked: Sequence[Asked], budget: int) -> list[int]:
    rows = [
        Row(timestamp=at, input_length=tokens, output_length=1, hash_ids=list(ids))
        for at, (ids, tokens) in enumerate(asked)
    ]
    trace = trace_of(rows, SOURCE, block_size=BLOCK_SIZE)
    return [int(hit) for hit in prefix_lookup(trace, budget)]


def test_by_hand() -> None:
    """A budget of 4 blocks of 4 tokens.

    1, 2, 3 (11 tokens) are new; 1, 2, 3 (11) again hit whole; 9 (4) is new, and the pool is full; 1, 2 (8)
    hit; 8 (4) is new and takes the place of 3, used longest ago; so 1, 2, 3 hits 1 and 2 alone.
    """
    asked = [
        Asked([1, 2, 3], 11),
        Asked([1, 2, 3], 11),
        Asked([9], 4),
        Asked([1, 2], 8),
        Asked([8], 4),
        Asked([1, 2, 3], 11),
    ]
    assert looked_up(asked, 4) == [0, 11, 0, 8, 0, 8]
    assert plain_lru(asked, BLOCK_SIZE, 4) == [0, 11, 0, 8, 0, 8]


def test_of_one_request_the_last_block_goes_first() -> None:
    """3 blocks are there, one has to go: the first two of them are still hits."""
    assert looked_up([Asked([1, 2, 3], 12), Asked([9], 4), Asked([1, 2, 3], 12)], 3) == [0, 0, 8]


def test_a_cache_that_does_not_hold_a_prompt_is_refused() -> None:
    """9 tokens are 3 blocks of 4."""
    with pytest.raises(ConfigError, match="longest prompt, 3 blocks"):
        looked_up([Asked([1, 2, 3], 9)], 2)


def test_a_trace_without_prefixes_is_refused() -> None:
    with pytest.raises(ConfigError, match="no prefix hashes"):
        prefix_lookup(trace_of([Row(timestamp=0, input_length=4, output_length=1)], SOURCE, block_size=0), 10)


@st.composite
def traffic(draw: st.DrawFn) -> list[Asked]:
    """Draw paths in one small tree; the last block of each is whole or one token short."""
    asked = []
    for _ in range(draw(st.integers(1, 40))):
        ids = draw(st.lists(st.integers(0, 2), min_size=1, max_size=6))
        short = draw(st.integers(0, 1))
        # The id of a short block is one that no full block has: an id stands for the tokens of its block.
        asked.append(Asked([*ids[:-1], ids[-1] + 10 * short], len(ids) * BLOCK_SIZE - short))
    return asked


@settings(deadline=None)
@given(asked=traffic(), budget=st.integers(6, 20))
def test_any_traffic(asked: list[Asked], budget: int) -> None:
    assert looked_up(asked, budget) == plain_lru(asked, BLOCK_SIZE, budget)


@pytest.mark.parametrize(
    ("budget", "hit_tokens"), [(1_000, 3_173_822), (10_000, 14_910_149), (100_000, 26_635_636)]
)
def test_mooncake_as_kvcache_simulator_has_it(
    budget: int, hit_tokens: int, real_trace: Callable[[str], Path]
) -> None:
    """Of the second half of the requests, which is what it reports, and request by request the plain LRU."""
    path = real_trace(MOONCAKE)
    trace = load_trace(str(path))
    found = prefix_lookup(trace, budget)
    assert found[len(trace) // 2 :].sum() == hit_tokens
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    asked = [Asked(line["hash_ids"], line["input_length"]) for line in lines]
    assert found.tolist() == plain_lru(asked, MOONCAKE_BLOCK_SIZE, budget)
