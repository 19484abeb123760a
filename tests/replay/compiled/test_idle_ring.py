"""The ring of idle blocks full of places that blocks have left: they are dropped, and the order is kept."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kvsuite.cache.layout import model_layout
from kvsuite.engine.config import EngineConfig
from kvsuite.replay.batch import SchedulerConfig
from kvsuite.replay.compiled.replay import compiled_replay
from kvsuite.trace.model import Trace, TraceSource
from kvsuite.trace.rows import Row, trace_of

HoldAgainst = Callable[[Trace, EngineConfig, SchedulerConfig], None]

BLOCK = 4
NUM_BLOCKS = 16
RING_PLACES = 2 * NUM_BLOCKS
"""The least power of two that is twice the pool."""
PROMPTS = (3, 5, 4)
"""Blocks of three prompts that come in turn, and fit the pool together."""


def in_turn(requests: int, then: int, last_blocks: int = 0) -> Trace:
    """Three prompts again and again, each found whole but for its end, then ``then`` that push them out.

    The last of all comes with ``last_blocks`` of its own, when the one before it has just ended.
    """
    rows = []
    for number in range(requests + then):
        which = number % len(PROMPTS) if number < requests else number
        blocks = PROMPTS[number % len(PROMPTS)]
        rows.append(
            Row(
                request_id=f"r{number}",
                timestamp=number * 100,
                input_length=blocks * BLOCK,
                output_length=1,  # fills no block
                hash_ids=[1000 * which + block for block in range(blocks)],
            )
        )
    if last_blocks:
        arrival_ms = (requests + then) * 100
        rows.append(
            Row(request_id="last", timestamp=arrival_ms, input_length=last_blocks * BLOCK, output_length=0)
        )
    return trace_of(rows, TraceSource("test", "in turn"), block_size=BLOCK)


@pytest.mark.parametrize("requests", [9, 30, 31, 32, 90])
def test_places_are_dropped_and_the_oldest_stays_the_oldest(
    requests: int, hold_against_the_driver: HoldAgainst
) -> None:
    trace = in_turn(requests, then=12)
    config = EngineConfig(model_layout("tiny"), BLOCK, NUM_BLOCKS)
    hold_against_the_driver(trace, config, SchedulerConfig(step_us=50_000))


@pytest.mark.parametrize("requests", range(20, 44))
def test_what_was_cached_since_the_last_row_is_not_evicted(
    requests: int, hold_against_the_driver: HoldAgainst
) -> None:
    """The last request takes the whole pool, also what the one before it left after its last row."""
    trace = in_turn(requests, then=0, last_blocks=NUM_BLOCKS)
    config = EngineConfig(model_layout("tiny"), BLOCK, NUM_BLOCKS)
    hold_against_the_driver(trace, config, SchedulerConfig(step_us=50_000))


def test_the_ring_was_full() -> None:
    """Every block that is found again leaves a place; nothing is evicted before the last requests."""
    config = EngineConfig(model_layout("tiny"), BLOCK, NUM_BLOCKS)
    done = compiled_replay(in_turn(90, then=0), config, SchedulerConfig(step_us=50_000))
    assert done.summary.total("reactivated") > 4 * RING_PLACES
    assert done.summary.total("evicted") == 0
