from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from kvsuite.report.view import build_view

if TYPE_CHECKING:
    from kvsuite.report.ledgers import LedgerView

ROWS: dict[str, list[int | None]] = {
    "payload": [3, 9, 6],
    "slack": [1, 3, 2],
    "cached": [0, 8, 0],
    "free": [24, 8, 20],
    "live_blocks": [1, 3, 2],
}


def only_ledger(build: Any, *lines: Any) -> LedgerView:
    (view,) = build_view(build.record(build.engine(), build.trace(), *lines, build.content())).ledgers
    return view


def test_the_categories_of_the_fullest_row_add_up_to_the_pool(build: Any) -> None:
    """Row 1 holds 9 + 3 + 8 + 8 tokens and a null block of 4: 32 slots of 10 bytes, and 16 of padding."""
    view = only_ledger(build, build.ledger(ROWS))

    assert view.peak is not None
    assert view.peak.title == "Peak, step 1"
    assert view.peak.category_bytes == {
        "payload": 90,
        "slack": 30,
        "over_reserved": 0,
        "cached": 80,
        "quarantined": 0,
        "free": 80,
        "never_allocatable": 40,
        "pad": 16,
    }
    assert view.peak.sum_bytes == 336
    assert view.peak.gap_bytes == 0
    assert view.closes is True


def test_shares_of_the_fullest_row(build: Any) -> None:
    view = only_ledger(build, build.ledger(ROWS))
    assert view.peak is not None
    assert view.peak.utilisation == pytest.approx(90 / 336)
    assert view.peak.efficiency == pytest.approx(9 / 12)
    assert view.peak.slack_share == pytest.approx(3 / 12)
    assert view.peak_occupancy == pytest.approx(3 / 8)
    assert view.most_bytes("cached") == 80
    assert view.most_bytes("pad") == 16


def test_means_are_of_sums_and_close_as_well(build: Any) -> None:
    """Payload 18 and slack 6 over three steps: 24 tokens allocated in all."""
    mean = only_ledger(build, build.ledger(ROWS)).mean
    assert mean.category_bytes["payload"] == pytest.approx(60)
    assert mean.efficiency == pytest.approx(18 / 24)
    assert mean.slack_share == pytest.approx(6 / 24)
    assert mean.sum_bytes == pytest.approx(336)
    assert mean.gap_bytes == 0


def test_a_ledger_that_does_not_close_shows_its_gap(build: Any) -> None:
    short = ROWS | {"free": [24, 5, 20]}
    view = only_ledger(build, build.ledger(short, closing_gap_bytes=30))
    assert view.closes is False
    assert view.peak is not None
    assert view.peak.gap_bytes == 30


def test_a_category_that_was_not_observed_leaves_no_sum(build: Any) -> None:
    blind = ROWS | {"cached": [None, None, None]}
    view = only_ledger(build, build.ledger(blind, closing_gap_bytes=None))

    assert view.closes is None
    assert view.unobserved == ("Cached",)
    assert view.peak is not None
    assert view.peak.category_bytes["cached"] is None
    assert view.peak.sum_bytes is None
    assert view.peak.gap_bytes is None
    assert view.mean.sum_bytes is None
    assert view.peak.efficiency == pytest.approx(9 / 12)
    assert view.most_bytes("cached") is None


def test_the_fullest_row_goes_by_payload_where_blocks_were_not_seen(build: Any) -> None:
    blind = ROWS | {"live_blocks": [None, None, None]}
    view = only_ledger(build, build.ledger(blind))
    assert view.peak is not None
    assert view.peak.title == "Peak, step 1"
    assert view.peak_occupancy is None


def test_series_are_nan_where_a_column_or_a_row_was_not_seen(build: Any) -> None:
    view = only_ledger(build, build.ledger(ROWS | {"waiting": [1, None, 2]}))
    np.testing.assert_array_equal(view.series("waiting"), [1, np.nan, 2])
    assert np.isnan(view.series("no such column")).all()
    np.testing.assert_array_equal(view.category_bytes("slack"), [10, 30, 20])
    np.testing.assert_array_equal(view.category_bytes("pad"), [16, 16, 16])
    np.testing.assert_array_equal(view.allocated_tokens(), [4, 12, 8])
