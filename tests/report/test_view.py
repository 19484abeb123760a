from __future__ import annotations

from typing import Any

import pytest

from kvsuite.engine.contract import Capability
from kvsuite.record.schema import SweepRow
from kvsuite.report.memory import bytes_reconciled, memory_views
from kvsuite.report.view import MAX_DRAWN, build_view


def test_cases_stand_worst_first(build: Any) -> None:
    lines = [
        build.case("skipped", "skipped", capability="FORK"),
        build.case("plain pass"),
        build.case("expected", "xfailed", deviation="upstream: late"),
        build.case("pass with footprint"),
        build.case("fixed deviation", "xpassed"),
        build.case("crash", "error"),
        build.case("failed, drift", "failed"),
        build.case("failed, regression", "failed"),
        build.case("failed, two invariants", "failed", invariants=["closure", "recount"]),
        build.case("failed, one invariant", "failed", invariants=["closure"]),
        build.golden("pass with footprint", "footprint"),
        build.golden("failed, drift", "drift"),
        build.golden("failed, regression", "regression"),
        build.golden("plain pass", "match"),
    ]
    view = build_view(build.record(*lines))

    assert [case.line.case for case in view.cases] == [
        "crash",
        "failed, regression",
        "failed, drift",
        "failed, two invariants",
        "failed, one invariant",
        "fixed deviation",
        "pass with footprint",
        "expected",
        "plain pass",
        "skipped",
    ]
    assert [case.line.case for case in view.quiet_cases] == ["plain pass", "skipped"]
    assert [case.failing for case in view.cases] == [True] * 6 + [False] * 4
    assert view.outcomes == (
        ("error", 1),
        ("failed", 4),
        ("xpassed", 1),
        ("xfailed", 1),
        ("skipped", 1),
        ("passed", 2),
    )
    assert view.verdicts == (("regression", 1), ("drift", 1), ("footprint", 1), ("match", 1))


def test_a_case_with_a_missing_golden_fails_even_where_its_outcome_says_passed(build: Any) -> None:
    view = build_view(build.record(build.case("a"), build.case("b"), build.golden("b", "missing")))
    assert [(case.line.case, case.failing) for case in view.cases] == [("b", True), ("a", False)]
    assert view.verdict.status == "bad"


def test_anchors_are_unique_and_name_the_case(build: Any) -> None:
    lines = [build.case("a.py::t[x]"), build.case("a.py::t(x)"), build.case("b", engine="other")]
    anchors = [case.anchor for case in build_view(build.record(*lines)).cases]
    assert sorted(anchors) == ["case-a.py-t-x-toy", "case-a.py-t-x-toy-2", "case-b-other"]


def test_goldens_without_a_case_are_shown_too(build: Any) -> None:
    view = build_view(build.record(build.case("a"), build.golden("z", "match"), build.golden("y", "drift")))
    assert [golden.case for golden in view.loose_goldens] == ["y", "z"]
    assert view.cases[0].goldens == ()


def test_skips_are_listed_by_capability_with_its_definition(build: Any) -> None:
    view = build_view(
        build.record(
            build.case("a", "skipped", capability="FORK"),
            build.case("b", "skipped", message="no card"),
            build.case("c", "skipped", capability="FORK"),
        )
    )
    assert [(group.capability, len(group.cases)) for group in view.skips] == [
        ("FORK", 2),
        ("for another reason", 1),
    ]
    assert view.skips[0].definition == Capability.FORK.value


def test_what_could_not_be_judged_is_counted(build: Any) -> None:
    lines = [build.case("a", not_judged=["device"]), build.case("b", not_judged=["device", "recount"])]
    assert build_view(build.record(*lines)).not_judged == (("device", 2), ("recount", 1))


def test_cases_are_counted_by_device(build: Any) -> None:
    lines = [build.case("a"), build.case("b", device="cuda:1"), build.case("c", device="cuda:1")]
    assert build_view(build.record(*lines)).devices == (("cpu", 1), ("cuda:1", 2))


def test_a_good_run_says_what_it_did(build: Any) -> None:
    verdict = build_view(build.record(*build.replay(), build.case())).verdict
    assert verdict.status == "good"
    assert verdict.details == ("1 ledger closes at every one of 3 steps", "1,234 tokens read back as written")


def test_goldens_that_pass_with_a_difference_are_counted(build: Any) -> None:
    goldens = [build.golden(name, "footprint") for name in "ab"] + [build.golden("d", "unblessed")]
    verdict = build_view(build.record(*goldens, build.golden("e"))).verdict
    assert verdict.status == "good"
    assert verdict.details == ("2 goldens with another footprint", "1 golden not yet accepted")


def test_a_golden_is_told_once(build: Any) -> None:
    golden = build.golden("a", "drift")
    told = build.case("a", "failed", message=f"golden drift {golden.path}: step 4\n  - [4, 4]")
    assert build_view(build.record(golden, told)).cases[0].message == ""
    other = build.case("a", "failed", message="closure at step 3: 4 bytes are missing")
    assert build_view(build.record(golden, other)).cases[0].message == other.message


@pytest.mark.parametrize(
    ("lines", "headline"),
    [
        (lambda b: [b.case("a", "failed"), b.case("b")], "1 of 2 cases failed"),
        (lambda b: [b.golden("a", "drift")], "1 golden differs or is missing"),
        (
            lambda b: [b.engine(), b.trace(), b.ledger(closing_gap_bytes=10), b.content()],
            "1 ledger does not close",
        ),
        (lambda b: [b.engine(), b.trace(), b.ledger(), b.content(mismatches=2)], "2 tokens read back wrong"),
    ],
    ids=["case", "golden", "gap", "content"],
)
def test_each_kind_of_failure_turns_the_verdict(build: Any, lines: Any, headline: str) -> None:
    verdict = build_view(build.record(*lines(build))).verdict
    assert (verdict.status, verdict.headline) == ("bad", headline)
    assert "as written" not in " ".join(verdict.details) or "wrong" not in headline


def test_an_exit_status_alone_is_bad_and_a_missing_end_is_cut_short(build: Any) -> None:
    assert build_view(build.record(exit_status=3)).verdict.headline == "The run ended with exit status 3"
    cut = build_view(build.record(build.case("a", "failed"), cut=True))
    assert cut.verdict.status == "cut"
    assert cut.verdict.details == ("1 of 1 case failed",)
    assert (cut.finished_at, cut.exit_status) == (None, None)


def test_a_ledger_that_could_not_be_judged_is_not_called_good(build: Any) -> None:
    lines = [
        build.engine(),
        build.trace(),
        build.ledger(closing_gap_bytes=None),
        build.content(tokens_read=0),
    ]
    assert build_view(build.record(*lines)).verdict.details == (
        "1 ledger not judged: a category was not observed",
    )


def test_pictures_go_to_ledgers_that_do_not_close_then_to_failing_cases(build: Any) -> None:
    lines = [build.engine(), build.trace(), build.case("0", "failed")]
    for k in range(MAX_DRAWN + 3):
        gap = 10 if k == 1 else 0
        steps = {"payload": [1] * (4 + k)}
        lines += [build.ledger(steps, case=str(k), closing_gap_bytes=gap), build.content(str(k))]
    view = build_view(build.record(*lines))

    assert [ledger.line.case for ledger in view.drawn] == ["0", "1", "5", "6", "7", "8", "9", "10"]
    assert len(view.ledgers) == MAX_DRAWN + 3


@pytest.mark.parametrize(
    ("more", "closes"),
    [
        ({"owner": "engine"}, True),
        ({"owner": "suite"}, False),
        ({"owner": "engine", "reserve_bytes": 51}, False),
        ({"owner": "engine", "reserve_bytes": None}, False),
        ({"owner": "engine", "observed_bytes": None}, False),
        (
            {
                "owner": "engine",
                "observed_bytes": 409,
                "unattributed_bytes": 9,
                "unattributed_bound_bytes": 9,
            },
            True,
        ),
        (
            {
                "owner": "engine",
                "observed_bytes": 410,
                "unattributed_bytes": 10,
                "unattributed_bound_bytes": 9,
            },
            False,
        ),
        ({"owner": "engine", "observed_bytes": 390, "unattributed_bytes": -10}, False),
    ],
)
def test_bytes_are_reconciled_only_by_an_engines_own_lines_that_close(
    build: Any, more: dict[str, Any], closes: bool
) -> None:
    record = build.record(build.memory(**more), build.memory("suite"))
    assert bytes_reconciled(memory_views(record)) is closes


def test_one_open_reading_is_enough(build: Any) -> None:
    good, bad = build.memory("engine", step=1), build.memory("engine", step=2, pool_bytes=299)
    (view,) = memory_views(build.record(good, bad))
    assert (view.open_readings, view.unjudged_readings, view.reconciled) == (1, 0, False)
    assert view.fullest.step == 1


def test_comparison_sentences(build: Any) -> None:
    """336 slots against 600: 44 % less, 600 / 336 = 1.79 times as many."""
    (view,) = build_view(
        build.record(build.trace(), build.comparison(caveat="Exact needs an oracle."))
    ).comparisons

    assert view.sentences == (
        "336 slots (pages) instead of 600 (reserve all): 44.0 % less memory, "
        "or 1.8 times the sequences in the same memory.",
    )
    assert [strategy.utilisation for strategy in view.strategies] == [0.5, pytest.approx(300 / 336)]
    assert view.mean_tokens == 100
    assert view.caveats[0].startswith("Reservation was never built for dynamic lengths")
    assert view.caveats[1] == "Exact needs an oracle."


def test_the_handbooks_comparison(build: Any) -> None:
    """50 sequences of at most 2,048 tokens: 102,400 slots reserved, 14,976 paged, 14,582 tokens of data."""
    control, paged = build.comparison().rows
    rows = [
        type(control)(**_fields(control) | {"reserved_tokens": 102_400, "payload_tokens": 14_582}),
        type(paged)(**_fields(paged) | {"reserved_tokens": 14_976, "payload_tokens": 14_582}),
    ]
    (view,) = build_view(build.record(build.trace(), build.comparison(rows=rows))).comparisons
    assert "85.4 % less memory, or 6.8 times the sequences" in view.sentences[0]
    assert [f"{100 * strategy.utilisation:.1f}" for strategy in view.strategies] == ["14.2", "97.4"]


def test_a_sweep_sorts_its_options(build: Any) -> None:
    (view,) = build_view(build.record(build.trace(), build.sweep())).sweeps
    assert [row.block_size for row in view.paged] == [2, 8]
    assert [row.option for row in view.controls] == ["hold all"]
    assert [row.option for row in view.refused] == ["block 64"]
    assert view.context.control == "hold all"
    assert view.context.window == "the whole trace, 7 to 12 busy steps an option"


def test_a_cell_that_failed_is_neither_drawn_nor_refused(build: Any) -> None:
    failed = SweepRow(option="block 4", engine="toy", block_size=4, failed="its <worker> died")
    line = build.sweep(rows=[*build.sweep().rows, failed])
    (view,) = build_view(build.record(build.trace(), line)).sweeps
    assert [row.block_size for row in view.paged] == [2, 8]
    assert [row.option for row in view.refused] == ["block 64"]
    assert view.failed == (failed,)


def _fields(row: Any) -> dict[str, Any]:
    return {name: getattr(row, name) for name in row.__struct_fields__}
