from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsuite.cache.layout import model_layout
from kvsuite.errors import ConfigError
from kvsuite.replay.scheduler import SchedulerConfig
from kvsuite.sweep.plan import (
    DEFAULT_SIZES,
    Option,
    SweepPlan,
    longest_declared_tokens,
    run_option,
    static_slack_share,
    sweep_line,
    sweep_options,
)
from kvsuite.trace.model import TraceSource
from kvsuite.trace.rows import Row, trace_of

if TYPE_CHECKING:
    from kvsuite.trace.model import Trace

TINY = model_layout("tiny")
TOKEN_BYTES = 2 * 2 * 2 * 8 * 2
"""Two layers, keys and values, two heads of 8 elements of 2 bytes."""


def trace(*requests: tuple[int, int], cap: int | None = None) -> Trace:
    """Return requests of (prompt, output) tokens that all arrive at once and share nothing."""
    rows = [
        Row(timestamp=0, input_length=prompt, output_length=output, hash_ids=[], max_output_length=cap)
        for prompt, output in requests
    ]
    return trace_of(rows, TraceSource(format="test", name="test"), block_size=16)


def plan(asked: Trace, slots: int, *options: Option, max_model_tokens: int | None = None) -> SweepPlan:
    return SweepPlan(
        trace=asked,
        layout=TINY,
        pool_bytes=slots * TOKEN_BYTES,
        options=options,
        scheduler=SchedulerConfig(),
        max_model_tokens=max_model_tokens,
    )


@given(st.lists(st.integers(1, 5000), min_size=1, max_size=40), st.sampled_from([*DEFAULT_SIZES, 3, 512]))
def test_static_slack_is_one_minus_lengths_over_ceilings(lengths: list[int], size: int) -> None:
    expected = 1 - sum(lengths) / sum(ceil(n / size) * size for n in lengths)
    assert static_slack_share(np.array(lengths), size) == pytest.approx(expected, abs=1e-12)
    assert static_slack_share(np.array(lengths), 1) == 0


def test_the_default_sizes_are_the_powers_of_two_to_256() -> None:
    assert DEFAULT_SIZES == (1, 2, 4, 8, 16, 32, 64, 128, 256)


def test_options_are_the_sizes_then_the_controls() -> None:
    found = sweep_options("acme", (8, 16), ("contiguous-exact",))
    assert found == (
        Option("block 8", "acme", 8),
        Option("block 16", "acme", 16),
        Option("contiguous-exact", "contiguous-exact", 1),
    )


def test_one_request_at_block_16_by_hand() -> None:
    """17 + 2 tokens: 17, 18 and 19 tokens in 2 blocks of 16 over 3 steps, in a pool of 8 blocks."""
    option = Option("block 16", "reference", 16)
    row = run_option(plan(trace((17, 2)), 128, option), option).row
    assert (row.admitted, row.finished, row.preempted, row.refused_admissions) == (1, 1, 0, 0)
    assert row.slack_share == pytest.approx((15 + 14 + 13) / 96)
    assert row.allocation_efficiency == pytest.approx(54 / 96)
    assert row.static_slack_share == pytest.approx(13 / 32)
    assert row.table_bytes_peak == 2 * 4
    assert row.mean_occupancy == pytest.approx(2 / 8)
    assert (row.mean_running, row.steps, row.peak_payload_tokens) == (1.0, 3, 19)
    assert (row.fragmentation_events, row.hit_tokens) == (0, 0)


def test_a_control_wastes_by_reservation_and_needs_no_table() -> None:
    """The same request, of which a control reserves the declared 17 + 23 tokens: 40 of 128 slots."""
    option = Option("contiguous-max", "contiguous-max", 1)
    row = run_option(plan(trace((17, 2), cap=23), 128, option), option).row
    assert row.slack_share == 0
    assert row.allocation_efficiency == pytest.approx(54 / 120)
    assert row.mean_occupancy == pytest.approx(40 / 128)
    assert row.table_bytes_peak == 0


def test_without_a_cap_the_largest_control_reserves_the_longest_of_the_trace_or_what_is_given() -> None:
    asked = trace((17, 2), (30, 20))
    assert longest_declared_tokens(asked) == 50
    option = Option("contiguous-max", "contiguous-max", 1)
    for given_tokens, reserved in ((None, 50), (64, 64)):
        row = run_option(plan(asked, 128, option, max_model_tokens=given_tokens), option).row
        # step 1 holds both reservations; 17 and 30, 18 and 31, 19 and 32, then 33 .. 50 alone
        steps = 21
        held = 3 * 2 * reserved + 18 * reserved
        assert row.steps == steps
        assert row.mean_occupancy == pytest.approx(held / (steps * 128))


def test_every_option_gets_the_same_bytes() -> None:
    options = sweep_options("reference", (16, 24), ("contiguous-exact",))
    asked = plan(trace((17, 2)), 130, *options)
    assert [asked.config(option).num_blocks for option in options] == [8, 5, 130]


def test_a_hole_that_is_too_small_counts_at_each_offer_and_paged_blocks_do_not_care() -> None:
    """Pool of 12 slots. A and C hold 4 and end after step 0, B holds 4 to the end of step 3, D waits for 8.

    step   slots 0..3  4..7  8..11
    0      A           B     C       D refused: no slot is free
    1                  B             D refused: 8 free in two holes of 4
    2                  B             D refused: the same
    3                  B             D refused: the same, and B ends after it
    4      D           D             admitted
    """
    asked = trace((4, 0), (1, 3), (4, 0), (8, 0))
    exact, paged = Option("contiguous-exact", "contiguous-exact", 1), Option("block 4", "reference", 4)
    held = run_option(plan(asked, 12, exact), exact).row
    assert (held.refused_admissions, held.fragmentation_events, held.steps) == (4, 3, 5)
    row = run_option(plan(asked, 12, paged), paged).row
    assert (row.refused_admissions, row.fragmentation_events, row.steps) == (1, 0, 4)


def test_a_size_that_the_pool_does_not_hold_is_a_row_with_its_reason() -> None:
    option = Option("block 256", "reference", 256)
    result = run_option(plan(trace((17, 2)), 128, option), option)
    assert result.replay is None
    assert result.row.refused is not None
    assert "the pool holds 0 blocks of 256 tokens" in result.row.refused
    assert result.row.slack_share is None


def test_the_line_carries_what_the_figures_rest_on() -> None:
    option = Option("block 16", "reference", 16)
    asked = plan(trace((17, 2)), 128, option)
    line = sweep_line(asked, [run_option(asked, option).row], trace="t")
    assert (line.trace, line.pool_bytes, line.layout) == ("t", 128 * TOKEN_BYTES, str(TINY))
    assert line.recipe["step_us"] == 50_000
    assert line.recipe["prefix_cache"] is True


def test_a_control_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigError, match="'reference' is no contiguous control"):
        sweep_options("reference", (16,), ("reference",))
