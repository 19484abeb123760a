from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsuite.cache.layout import model_layout
from kvsuite.errors import ConfigError
from kvsuite.replay.scheduler import SchedulerConfig
from kvsuite.sweep import plan as plan_module
from kvsuite.sweep.cells import CONTROLS, Cell, run_cell
from kvsuite.sweep.lengths import longest_declared_tokens, static_slack_share
from kvsuite.sweep.plan import DEFAULT_SIZES, SweepPlan, exact_bytes
from kvsuite.sweep.results import refused_row
from kvsuite.sweep.traces import TraceRef
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


def plan(asked: Trace, slots: int, **more: Any) -> SweepPlan:
    fields: dict[str, Any] = {
        "traces": (TraceRef.of(asked),),
        "layout": TINY,
        "pools_bytes": (slots * TOKEN_BYTES,),
        "scheduler": SchedulerConfig(),
        **more,
    }
    return SweepPlan(**fields)


def only(
    asked: Trace, slots: int, *, size: int | None = None, control: str | None = None, **more: Any
) -> Cell:
    """Return the one cell of the reference engine at a size, or of a control."""
    sizes, controls = () if size is None else (size,), () if control is None else (control,)
    (cell,) = plan(asked, slots, sizes=sizes, controls=controls, **more).cells()
    return cell


@given(st.lists(st.integers(1, 5000), min_size=1, max_size=40), st.sampled_from([*DEFAULT_SIZES, 3, 512]))
def test_static_slack_is_one_minus_lengths_over_ceilings(lengths: list[int], size: int) -> None:
    expected = 1 - sum(lengths) / sum(ceil(n / size) * size for n in lengths)
    assert static_slack_share(np.array(lengths), size) == pytest.approx(expected, abs=1e-12)
    assert static_slack_share(np.array(lengths), 1) == 0


def test_the_default_sizes_are_the_powers_of_two_to_256() -> None:
    assert DEFAULT_SIZES == (1, 2, 4, 8, 16, 32, 64, 128, 256)


def test_options_are_the_sizes_then_the_controls() -> None:
    asked = plan(trace((17, 2)), 128, engines=("acme",), sizes=(8, 16), controls=("contiguous-exact",))
    assert [(cell.name, cell.option, cell.engine, cell.block_size) for cell in asked.cells()] == [
        ("block 8", "block 8", "acme", 8),
        ("block 16", "block 16", "acme", 16),
        ("contiguous-exact", "contiguous-exact", "contiguous-exact", 1),
    ]


def test_cells_come_trace_by_trace_pool_by_pool_and_engine_by_engine_under_names_of_their_own() -> None:
    asked = plan(
        trace((17, 2)),
        128,
        traces=(TraceRef.of(trace((17, 2)), "one"), TraceRef.of(trace((18, 2)), "two")),
        pools_bytes=(2**20, 1536),
        engines=("acme", "reference"),
        sizes=(8,),
        controls=("contiguous-exact",),
        engine_options={"b": 2, "a": True},
    )
    cells = asked.cells()
    assert [cell.name for cell in cells] == [
        f"{option} in {pool} on {name}"
        for name in ("one", "two")
        for pool in ("1MiB", "1536B")
        for option in ("acme block 8", "reference block 8", "contiguous-exact")
    ]
    assert len({cell.key for cell in cells}) == len(cells) == 12
    assert [cell.options for cell in cells[:3]] == [(("a", True), ("b", 2))] * 2 + [()]
    lines = list(asked.lines(tuple(refused_row(cell, cell.name) for cell in cells)))
    assert [(line.trace, line.pool_bytes) for line in lines] == [
        ("one", 2**20),
        ("one", 1536),
        ("two", 2**20),
        ("two", 1536),
    ]
    assert [row.refused for line in lines for row in line.rows] == [cell.name for cell in cells]


def test_a_byte_count_is_said_exactly() -> None:
    counts = (2**40, 1025 * 2**20, 2**20 + 1, 0)
    assert [exact_bytes(count) for count in counts] == ["1TiB", "1025MiB", "1048577B", "0B"]


def test_one_request_at_block_16_by_hand() -> None:
    """17 + 2 tokens: 17, 18 and 19 tokens in 2 blocks of 16 over 3 steps, in a pool of 8 blocks."""
    row = run_cell(only(trace((17, 2)), 128, size=16)).row
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
    row = run_cell(only(trace((17, 2), cap=23), 128, control="contiguous-max")).row
    assert row.slack_share == 0
    assert row.allocation_efficiency == pytest.approx(54 / 120)
    assert row.mean_occupancy == pytest.approx(40 / 128)
    assert row.table_bytes_peak == 0


def test_without_a_cap_the_largest_control_reserves_the_longest_of_the_trace_or_what_is_given() -> None:
    asked = trace((17, 2), (30, 20))
    assert longest_declared_tokens(asked) == 50
    for given_tokens, reserved in ((None, 50), (64, 64)):
        row = run_cell(only(asked, 128, control="contiguous-max", max_model_tokens=given_tokens)).row
        # step 1 holds both reservations; 17 and 30, 18 and 31, 19 and 32, then 33 .. 50 alone
        steps = 21
        held = 3 * 2 * reserved + 18 * reserved
        assert row.steps == steps
        assert row.mean_occupancy == pytest.approx(held / (steps * 128))


def test_every_option_gets_the_same_bytes() -> None:
    asked = trace((17, 2))
    cells = plan(asked, 130, sizes=(16, 24), controls=("contiguous-exact",)).cells()
    assert [cell.config(asked).num_blocks for cell in cells] == [8, 5, 130]


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
    held = run_cell(only(asked, 12, control="contiguous-exact")).row
    assert (held.refused_admissions, held.fragmentation_events, held.steps) == (4, 3, 5)
    row = run_cell(only(asked, 12, size=4)).row
    assert (row.refused_admissions, row.fragmentation_events, row.steps) == (1, 0, 4)


def test_a_size_that_the_pool_does_not_hold_is_a_row_with_its_reason() -> None:
    result = run_cell(only(trace((17, 2)), 128, size=256))
    assert (result.digest, result.lines) == (None, ())
    assert result.row.refused is not None
    assert "the pool holds 0 blocks of 256 tokens" in result.row.refused
    assert result.row.slack_share is None


def test_the_line_carries_what_the_figures_rest_on() -> None:
    asked = plan(trace((17, 2)), 128, sizes=(16,), controls=())
    (line,) = asked.lines(tuple(run_cell(cell).row for cell in asked.cells()))
    assert (line.trace, line.pool_bytes, line.layout) == ("trace", 128 * TOKEN_BYTES, str(TINY))
    assert line.recipe["step_us"] == 50_000
    assert line.recipe["prefix_cache"] is True


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"controls": ("reference",)}, "'reference' is no contiguous control"),
        ({"engines": ("contiguous-max",)}, "contiguous-max is a contiguous control: name it among"),
        ({"engines": ("acme", "acme")}, "engine acme is given twice"),
        ({"controls": CONTROLS[:1] * 2}, "engine contiguous-max is given twice"),
        ({"pools_bytes": (1024, 1024)}, "pool 1KiB is given twice"),
        ({"sizes": (8, 8)}, "size 8 is given twice"),
        ({"traces": (TraceRef.of(trace((17, 2))),) * 2}, "trace trace is given twice"),
    ],
)
def test_a_sweep_that_cannot_be_is_refused(asked: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        plan(trace((17, 2)), 128, **asked)


def test_the_compiled_core_cannot_be_demanded_where_numba_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_module, "has_numba", lambda: False)
    with pytest.raises(ConfigError, match="the compiled core needs numba"):
        plan(trace((17, 2)), 128, core="compiled")
    plan(trace((17, 2)), 128, core="compiled", engines=("acme",))
