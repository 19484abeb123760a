from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from kvsuite.errors import RecordError
from kvsuite.record.schema import SweepRow
from kvsuite.report.context import window_text
from kvsuite.report.html import render
from kvsuite.report.ledger_charts import time_axis
from kvsuite.report.view import build_view

if TYPE_CHECKING:
    from pathlib import Path


def test_a_ledger_with_everything_says_what_its_figures_rest_on(build: Any) -> None:
    (ledger,) = build_view(build.record(*build.replay())).ledgers

    assert ledger.context is not None
    assert ledger.context.input == f"churn, {build.trace().content_hash}"
    assert ledger.context.short_input == "churn, kvt1-0123456789ab…"
    assert ledger.context.configuration == (
        "toy 1.2, tiny L2; 8 blocks of 4 tokens (336 B); max_sequences 4, step_us 50,000"
    )
    assert ledger.context.window == "steps 0 to 2 (3 busy steps in 150 ms of trace time)"
    assert "probe slots: 1,234 tokens, 0 mismatches" in ledger.context.control


def test_steps_of_no_fixed_length_are_shown_by_number(build: Any) -> None:
    line = build.ledger(step_us=0, last_step=10_000, steps_total=10_001)
    assert window_text(line) == "steps 0 to 10,000 (10,001 busy steps)"
    assert time_axis(line).title == "step"


@pytest.mark.parametrize(
    ("without", "missing"),
    [
        (0, "configuration"),
        (1, "trace hash"),
        (3, "control"),
    ],
    ids=["engine", "trace", "content"],
)
def test_a_ledger_figure_is_refused_without_a_line_it_rests_on(
    build: Any, tmp_path: Path, without: int, missing: str
) -> None:
    lines = build.replay()
    del lines[without]
    page = tmp_path / "report.html"

    with pytest.raises(RecordError, match=rf"figure 'ledger of c' has no {missing}: it is not printed"):
        render(build.record(*lines), page)
    assert not page.exists()


@pytest.mark.parametrize(
    ("replaced", "missing"),
    [
        ({"recipe": {}}, "configuration"),
        ({"steps": [], "rows": []}, "window"),
        ({"trace": "unknown"}, "trace hash and no control"),
    ],
    ids=lambda value: str(value),
)
def test_a_ledger_figure_is_refused_when_the_line_itself_lacks_it(
    build: Any, replaced: dict[str, Any], missing: str
) -> None:
    lines = [build.engine(), build.trace(), build.ledger(**replaced)]
    if "trace" not in replaced:
        lines.append(build.content())
    with pytest.raises(RecordError, match=f"has no {missing}"):
        build_view(build.record(*lines))


def test_a_blank_hash_is_no_input(build: Any) -> None:
    lines = [build.engine(), build.trace(content_hash=""), build.ledger(), build.content()]
    with pytest.raises(RecordError, match="no trace hash"):
        build_view(build.record(*lines))


def test_a_record_cut_before_its_content_line_shows_the_ledger_without_figures(build: Any) -> None:
    view = build_view(build.record(*build.replay()[:3], cut=True))

    assert view.verdict.status == "cut"
    assert view.drawn == ()
    assert view.ledgers[0].mean.sum_bytes == pytest.approx(336)


def test_a_replay_without_steps_has_nothing_to_draw(build: Any) -> None:
    lines = [build.engine(), build.trace(), build.ledger({"payload": []}, final_lengths=[]), build.content()]
    view = build_view(build.record(*lines))
    assert view.drawn == ()
    assert view.ledgers[0].peak is None


def test_the_content_line_speaks_for_every_pool_of_its_replay(build: Any) -> None:
    second = build.ledger(ref="c::toy::churn::device/g1/r0")
    view = build_view(build.record(*build.replay(), second))
    assert [ledger.content == build.content() for ledger in view.ledgers] == [True, True]


@pytest.mark.parametrize(
    ("replaced", "missing"),
    [
        ({"trace": "unknown"}, "trace hash"),
        ({"lengths": []}, "window"),
        ({"rows": []}, "configuration and no control"),
    ],
    ids=lambda value: str(value),
)
def test_a_comparison_is_refused_without_what_it_rests_on(
    build: Any, replaced: dict[str, Any], missing: str
) -> None:
    with pytest.raises(RecordError, match=f"figure 'comparison of compare' has no {missing}"):
        build_view(build.record(build.trace(), build.comparison(**replaced)))


def test_a_comparison_needs_a_control_and_a_paged_strategy(build: Any) -> None:
    control, paged = build.comparison().rows
    with pytest.raises(RecordError, match="no control"):
        build_view(build.record(build.trace(), build.comparison(rows=[paged])))
    with pytest.raises(RecordError, match="no paged strategy to hold against reserve all"):
        build_view(build.record(build.trace(), build.comparison(rows=[control])))


def test_a_control_is_known_by_its_pool_whatever_its_name(build: Any) -> None:
    contiguous = build.engine("static", pools=[replace(build.pool, contiguous=True)])
    rows = [replace(row, engine="static") for row in build.comparison().rows[:1]]
    line = build.comparison(rows=[*rows, build.comparison().rows[1]])

    (view,) = build_view(build.record(build.trace(), contiguous, line)).comparisons
    assert [strategy.is_control for strategy in view.strategies] == [True, False]


@pytest.mark.parametrize(
    ("replaced", "missing"),
    [
        ({"trace": "unknown"}, "trace hash"),
        ({"recipe": {}}, "configuration"),
        ({"layout": ""}, "configuration"),
        ({"rows": [SweepRow(option="block 2", engine="toy", block_size=2, steps=3)]}, "control"),
        (
            {"rows": [SweepRow(option="all", engine="contiguous-max", block_size=1, refused="too large")]},
            "window",
        ),
    ],
    ids=["trace", "recipe", "layout", "control", "window"],
)
def test_a_sweep_is_refused_without_what_it_rests_on(
    build: Any, replaced: dict[str, Any], missing: str
) -> None:
    with pytest.raises(RecordError, match=f"figure 'sweep over .*' has no {missing}"):
        build_view(build.record(build.trace(), build.sweep(**replaced)))
