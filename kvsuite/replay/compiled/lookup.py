"""The prefix cache alone: prompts looked up one after the other, with no decode, no time and no rows.

This is what cache simulators count, and where the compiled pool can be held against them. A request finds the
leading blocks of its prompt, takes blocks for the rest, publishes them and lets go of all, tail first; the
block let go longest ago is evicted. Other than in a replay the whole prompt may be found, and a last block
that the prompt does not fill is cached like any other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kvsuite.errors import ConfigError
from kvsuite.replay.compiled.blocks import drop_block, find, hold_block, publish, take_block
from kvsuite.replay.compiled.columns import NUM_COLUMNS
from kvsuite.replay.compiled.fields import A, C
from kvsuite.replay.compiled.jit import compiled
from kvsuite.replay.compiled.requests import requests_of
from kvsuite.replay.compiled.state import State, open_state
from kvsuite.replay.compiled.tables import segment_at

if TYPE_CHECKING:
    from kvsuite.replay.compiled.requests import Requests
    from kvsuite.replay.compiled.state import Int64Array
    from kvsuite.trace.model import Trace

_ANY_STEP_US = 2**40
"""Times do not matter here."""


def prefix_lookup(trace: Trace, budget_blocks: int, *, requests: Requests | None = None) -> Int64Array:
    """Return the prompt tokens that each request finds in a cache of ``budget_blocks``, int64[requests].

    A block has as many tokens as a prefix node of the trace: what a smaller one that a prompt does not fill
    shares with another is not known.

    **Raises:** `ConfigError` for a trace without prefix nodes, or a cache smaller than the longest prompt.
    """
    if not trace.block_size:
        raise ConfigError("the trace carries no prefix hashes: there is nothing to look up")
    state = open_lookup(requests or requests_of(trace, _ANY_STEP_US), trace.block_size, budget_blocks)
    hits = np.zeros(len(trace), np.int64)
    with np.errstate(over="ignore"):  # hashes wrap around, in plain Python too
        look_up_all(state, hits)
    return hits


def open_lookup(requests: Requests, block_size: int, budget_blocks: int) -> State:
    """Return the state of an empty cache, for `look_up_all`."""
    longest = -(-int(requests.asked[A.PROMPT].max(initial=0)) // block_size)
    if longest > budget_blocks:
        raise ConfigError(
            f"a cache of {budget_blocks} blocks does not hold the longest prompt, {longest} blocks of "
            f"{block_size} tokens: give a larger cache"
        )
    return open_state(
        requests,
        num_blocks=budget_blocks,
        block_size=block_size,
        null_blocks=0,
        watermark_blocks=0,
        prefix_cache=True,
        max_sequences=1,
        max_step_tokens=1,
        columns=NUM_COLUMNS,
    )


@compiled
def look_up_all(s: State, hits: Int64Array) -> None:
    """Take every request in turn, once; ``hits``, int64[requests], receives the tokens found."""
    size = s.c[C.BLOCK_SIZE]
    for request in range(len(hits)):
        prompt = s.asked[A.PROMPT, request]
        entries = (prompt + size - 1) // size
        found = _hold_found(s, request, prompt, entries)
        hits[request] = min(found * size, prompt)
        segment = s.segment_offsets[request]
        for entry in range(found, entries):
            s.table[0, entry] = take_block(s)
            segment = segment_at(s, segment, min((entry + 1) * size, prompt))
            publish(s, segment, entry, s.table[0, entry], True)
        for entry in range(entries - 1, -1, -1):
            drop_block(s, s.table[0, entry])


@compiled
def _hold_found(s: State, request: int, prompt: int, entries: int) -> int:
    size = s.c[C.BLOCK_SIZE]
    segment = s.segment_offsets[request]
    for entry in range(entries):
        segment = segment_at(s, segment, min((entry + 1) * size, prompt))
        block = find(s, segment, entry)
        if block < 0:
            return entry
        hold_block(s, block)
        s.table[0, entry] = block
    return entries
