"""The stretch of a trace around its fullest step."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from typing import TYPE_CHECKING

import numpy as np
import pytest

from kvsuite.sweep import fullest
from kvsuite.sweep.fullest import STRETCH_REQUESTS, fullest_stretch
from kvsuite.sweep.measure import clock_cell, cold_until_us
from kvsuite.trace.model import ABSENT, TraceSource
from kvsuite.trace.overlay import apply_overlay
from kvsuite.trace.rows import Row, trace_of
from tests.sweep.stretches import COSTS, cell, together

if TYPE_CHECKING:
    from kvsuite.trace.model import Trace


def staying() -> Trace:
    """3,000 requests 10 ms apart that end at once, but for 40 around the 2,000th, which stay."""
    trace = together(3000, 6, 1, gap_ms=10)
    output = trace.output_tokens.copy()
    output[1990:2030] = 60
    return replace(trace, output_tokens=output)


def test_a_stretch_is_the_requests_around_the_fullest_step() -> None:
    trace = staying()
    asked = cell(trace, 4000, seats=64)
    found = fullest_stretch(asked, trace, COSTS, clock_cell(asked, trace, COSTS))
    assert len(found.trace) == STRETCH_REQUESTS
    names = [int(name[1:]) for name in found.trace.request_ids]
    assert names == list(range(names[0], names[0] + STRETCH_REQUESTS))
    assert 1990 <= names[0] + STRETCH_REQUESTS * 3 // 4 < 2040
    # Tables of 64 rows of 17 entries, as wide as the longest of the whole trace.
    assert found.cell.max_model_tokens == 66
    assert found.cell.pool_bytes == asked.pool_bytes - 64 * 17 * 4


@pytest.mark.parametrize(("limit_tokens", "most_tokens"), [(1000, 1000), (100, 2 * 50 * 4)])
def test_a_stretch_has_so_many_tokens_or_twice_what_the_pool_holds(
    monkeypatch: pytest.MonkeyPatch, limit_tokens: int, most_tokens: int
) -> None:
    monkeypatch.setattr(fullest, "STRETCH_TOKENS", limit_tokens)
    trace = staying()
    asked = cell(trace, 50, seats=64)
    found = fullest_stretch(asked, trace, COSTS, clock_cell(asked, trace, COSTS)).trace
    tokens = int((found.prompt_tokens + found.output_tokens).sum())
    assert most_tokens - 66 < tokens <= most_tokens


def test_children_whose_parent_stands_before_the_stretch_are_left_out() -> None:
    """Each of 1,500 has two more samples behind it, and 40 around the 1,000th stay."""
    trace = together(1500, 6, 1, gap_ms=10)
    output = trace.output_tokens.copy()
    output[990:1030] = 60
    trace = apply_overlay(replace(trace, output_tokens=output), "fork:every=1,n=3")
    asked = cell(trace, 4000, seats=64)
    clocked = clock_cell(asked, trace, COSTS)
    found = fullest_stretch(asked, trace, COSTS, clocked).trace
    names = [str(name) for name in found.request_ids]
    assert 0 < STRETCH_REQUESTS - len(names) <= 2
    assert found.parent[0] == ABSENT
    children = np.flatnonzero(found.parent != ABSENT)
    assert len(children) > 600
    assert all(names[child].split(".")[0] == names[found.parent[child]] for child in children)


def test_the_cold_phase_ends_with_the_bucket_that_saw_the_pool_full() -> None:
    """Steps of 1 ms: the first request has 1 + r tokens after step r, and fills 2,999 blocks in step 2,998.

    More than 1,024 steps are kept in buckets of four, 2,996 to 2,999 in one, which ends at 3 s. The second
    request came just before it and the others later, so that 5 % of 32 have arrived after 4 s only.
    """
    rows = [(0, 2998), (2998.5, 10), *[(4000, 1)] * 30]
    trace = trace_of(
        [
            Row(request_id=f"r{k}", timestamp=Decimal(str(at)), input_length=1, output_length=output)
            for k, (at, output) in enumerate(rows)
        ],
        TraceSource("invented", "long"),
        block_size=0,
    )
    asked = cell(trace, 2999, size=1)
    assert cold_until_us(trace, [clock_cell(asked, trace, COSTS)]) == 3_000_000
