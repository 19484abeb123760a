"""Every verdict, produced by a planted cause."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from kvsuite.golden import codec
from kvsuite.golden.diff import compare
from kvsuite.golden.judge import MISMATCHES, Verdict
from kvsuite.replay.scheduler import SEMANTICS_VERSION

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvsuite.golden.codec import Observed
    from kvsuite.golden.store import GoldenStore

Rows = tuple[dict[str, int], ...]


def _planted(rows: Rows, step: int, **values: int) -> Rows:
    return tuple({**row, **values} if index == step else row for index, row in enumerate(rows))


def test_match(store: GoldenStore, observe: Callable[..., Observed]) -> None:
    store.write(observe())
    judgement = store.judge(observe())
    assert (judgement.verdict, judgement.passes(), judgement.lines_differ) == (Verdict.MATCH, True, 0)


def test_provenance_does_not_matter(store: GoldenStore, observe: Callable[..., Observed]) -> None:
    store.write(observe(provenance={"device": "cpu"}))
    assert store.judge(observe(provenance={"device": "cuda"})).verdict is Verdict.MATCH


def test_regression(store: GoldenStore, observe: Callable[..., Observed], growth: Rows) -> None:
    store.write(observe())
    worse = _planted(growth, 2, allocated=2, free=20, slack=7)
    judgement = store.judge(observe(worse))
    assert (judgement.verdict, judgement.passes()) == (Verdict.REGRESSION, False)
    assert judgement.sentence == "step 2, slack: expected 3, found 7"
    assert judgement.lines_differ == 2  # the row itself, and the row whose deltas start from it
    assert judgement.diff[:3] == (
        '  [0, {"payload": 3, "slack": 1, "free": 28, "logical": 3, "allocated": 1, "written": 3}]',
        '  [1, {"payload": 1, "slack": -1, "logical": 1, "written": 1}]',
        '- [2, {"payload": 1, "slack": 3, "free": -4, "logical": 1, "allocated": 1, "written": 1}]',
    )
    assert judgement.diff[3][:2] == "+ "


def test_a_value_expected_and_found_is_absolute(
    store: GoldenStore, observe: Callable[..., Observed], growth: Rows
) -> None:
    store.write(observe())
    judgement = store.judge(observe(_planted(growth, 1, logical=6)))
    assert judgement.sentence == "step 1, logical: expected 4, found 6"


def test_an_effective_value_alone_is_a_regression_under_the_same_hash(
    store: GoldenStore, observe: Callable[..., Observed]
) -> None:
    store.write(observe())
    judgement = store.judge(observe(watermark_blocks=1))
    assert judgement.verdict is Verdict.REGRESSION
    assert judgement.changed_preimage == ("watermark_blocks: (not given) -> 1",)
    assert judgement.sentence == "watermark_blocks: (not given) -> 1"


def test_footprint(store: GoldenStore, observe: Callable[..., Observed], growth: Rows) -> None:
    store.write(observe())
    judgement = store.judge(observe(_planted(growth, 2, id_order=58)))
    assert judgement.verdict is Verdict.FOOTPRINT
    assert judgement.passes()
    assert not judgement.passes(strict_footprint=True)
    assert judgement.sentence == "by step 2, id_order: as many blocks came into use, in another order"


def test_counts_go_before_footprint(
    store: GoldenStore, observe: Callable[..., Observed], growth: Rows
) -> None:
    store.write(observe())
    judgement = store.judge(observe(_planted(growth, 2, id_order=58, written=2)))
    assert (judgement.verdict, judgement.sentence) == (
        Verdict.REGRESSION,
        "step 2, written: expected 1, found 2",
    )


def test_unblessed(store: GoldenStore, observe: Callable[..., Observed]) -> None:
    store.write(observe(version="1.0"))
    judgement = store.judge(observe(version="1.1"))
    assert (judgement.verdict, judgement.passes()) == (Verdict.UNBLESSED, True)
    assert judgement.changed_preimage == ("version: 1.0 -> 1.1",)
    assert judgement.held_against != judgement.path


def test_drift_names_the_divergence_and_what_changed_in_the_preimage(
    store: GoldenStore, observe: Callable[..., Observed], growth: Rows
) -> None:
    store.write(observe(version="1.0"))
    newer = observe(_planted(growth, 1, slack=4), version="1.1", cow="eager", block_size=8)
    judgement = store.judge(newer)
    assert (judgement.verdict, judgement.passes()) == (Verdict.DRIFT, False)
    assert judgement.sentence == "step 1, slack: expected 0, found 4"
    assert judgement.changed_preimage == ("cow: lazy -> eager", "version: 1.0 -> 1.1", "block_size: 4 -> 8")
    said = judgement.text("pytest --update-goldens")
    assert f"golden drift {judgement.path} (held against {judgement.held_against}): step 1, slack" in said
    assert "changed: version: 1.0 -> 1.1" in said
    assert said.endswith("accept: pytest --update-goldens")


def test_a_blessed_drift_stays_on_record(
    store: GoldenStore, observe: Callable[..., Observed], growth: Rows
) -> None:
    old = store.write(observe(version="1.0"))
    newer = observe(_planted(growth, 1, slack=4), version="1.1")
    path = store.write(newer)
    assert store.judge(newer).verdict is Verdict.MATCH
    blessed = store.load(path).blessed
    assert blessed is not None
    assert blessed.baseline == old.parent.name
    assert blessed.first_divergence == "step 1, slack: expected 0, found 4"
    assert blessed.changed == ["version: 1.0 -> 1.1"]
    assert store.load(store.write(observe(version="1.2"))).blessed is None


def test_only_the_footprint_of_a_new_version_differs(
    store: GoldenStore, observe: Callable[..., Observed], growth: Rows
) -> None:
    store.write(observe(version="1.0"))
    judgement = store.judge(observe(_planted(growth, 3, distinct_touched=3), version="1.1"))
    assert judgement.verdict is Verdict.FOOTPRINT
    assert judgement.sentence == "by step 3, distinct_touched: expected 2, found 3"


def test_missing_though_the_engine_has_goldens(store: GoldenStore, observe: Callable[..., Observed]) -> None:
    store.write(observe())
    judgement = store.judge(observe(case="conformance/test_new.py::test_two"))
    assert (judgement.verdict, judgement.passes()) == (Verdict.MISSING, False)
    assert judgement.verdict not in MISMATCHES


def test_missing_in_the_baseline(store: GoldenStore, observe: Callable[..., Observed]) -> None:
    store.write(observe(version="1.0"))
    judgement = store.judge(observe(version="1.1", case="conformance/test_new.py::test_two"))
    assert judgement.verdict is Verdict.MISSING
    assert "the baseline has no such file" in judgement.sentence


def test_missing_for_want_of_a_baseline(store: GoldenStore, observe: Callable[..., Observed]) -> None:
    path = store.write(observe(version="1.0"))
    (path.parent.parent / "BASELINE").unlink()
    judgement = store.judge(observe(version="1.1"))
    assert judgement.verdict is Verdict.MISSING
    assert path.parent.name in judgement.sentence
    assert "kvsuite golden baseline" in judgement.sentence


def test_unrecorded(store: GoldenStore, observe: Callable[..., Observed]) -> None:
    judgement = store.judge(observe())
    assert (judgement.verdict, judgement.passes()) == (Verdict.UNRECORDED, True)


def test_another_engine_has_goldens_of_its_own(store: GoldenStore, observe: Callable[..., Observed]) -> None:
    store.write(observe())
    other = observe()
    assert (
        store.judge(replace(other, engine=replace(other.engine, name="other"))).verdict is Verdict.UNRECORDED
    )


@pytest.mark.parametrize("equal", [True, False], ids=["same rows", "other rows"])
def test_suite_changed(
    store: GoldenStore,
    observe: Callable[..., Observed],
    growth: Rows,
    monkeypatch: pytest.MonkeyPatch,
    equal: bool,
) -> None:
    monkeypatch.setattr(codec, "SEMANTICS_VERSION", 0)
    store.write(observe())
    monkeypatch.undo()
    judgement = store.judge(observe(growth if equal else _planted(growth, 1, written=2)))
    assert (judgement.verdict, judgement.passes()) == (Verdict.SUITE_CHANGED, equal)
    assert judgement.changed_preimage == (f"replay_semantics: 0 -> {SEMANTICS_VERSION}",)
    assert judgement.verdict not in MISMATCHES
    assert "the suite changed" in judgement.text("")


def test_under_another_schema_only_the_columns_both_know_are_compared(
    store: GoldenStore, observe: Callable[..., Observed], growth: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    older = tuple(name for name in codec.EVENTS if name != "written")
    monkeypatch.setattr(codec, "SCHEMA_VERSION", 0)
    monkeypatch.setattr(codec, "EVENTS", older)
    store.write(observe(_planted(growth, 1, written=7)))
    monkeypatch.undo()
    judgement = store.judge(observe())
    assert (judgement.verdict, judgement.rows_equal) == (Verdict.SUITE_CHANGED, True)


def test_a_row_too_many_and_a_row_too_few(
    store: GoldenStore, observe: Callable[..., Observed], growth: Rows
) -> None:
    store.write(observe(growth, steps=[0, 1, 2, 3]))
    extra = store.judge(observe((*growth[:2], growth[1], *growth[2:]), steps=[0, 1, 2, 5, 6]))
    assert extra.verdict is Verdict.REGRESSION
    short = store.judge(observe(growth[:3], steps=[0, 1, 2]))
    assert short.sentence == "step 3: expected 1 rows, found 0"
    assert short.lines_differ == 1


def test_the_pool_that_diverges_first_is_named(
    store: GoldenStore, observe: Callable[..., Observed], growth: Rows
) -> None:
    store.write(observe(growth, growth))
    judgement = store.judge(observe(_planted(growth, 2, written=5), _planted(growth, 1, written=5)))
    assert judgement.sentence == "step 1 of pool device/g1/r0, written: expected 1, found 5"
    assert judgement.lines_differ == 2


def test_a_pool_more_is_no_match(store: GoldenStore, observe: Callable[..., Observed], growth: Rows) -> None:
    store.write(observe(growth))
    judgement = store.judge(observe(growth, growth))
    assert judgement.verdict is Verdict.REGRESSION
    assert "pools: 1 -> 2" in judgement.changed_preimage


def test_a_column_that_is_no_longer_seen_is_no_match(
    store: GoldenStore, observe: Callable[..., Observed], growth: Rows
) -> None:
    zero = tuple({**row, "evicted": 0} for row in growth)
    store.write(observe(zero))
    judgement = store.judge(observe(tuple({**row, "evicted": None} for row in zero)))
    assert judgement.verdict is Verdict.REGRESSION
    assert judgement.changed_preimage == ("pool 0 absent columns:  -> evicted",)


def test_a_long_replay_diverges_in_a_bucket(store: GoldenStore, observe: Callable[..., Observed]) -> None:
    rows: Any = tuple({"written": 1, "payload": index % 5} for index in range(3000))
    store.write(observe(rows))
    assert store.judge(observe(rows)).verdict is Verdict.MATCH
    counted = store.judge(observe(_planted(rows, 1234, written=2)))
    # 3,000 rows in lines of 12: row 1234 lies in the 103rd line, which ends with row 1235
    assert counted.sentence == "the 12 rows up to step 1235, written: expected 12, found 13"
    inside = store.judge(observe(_planted(rows, 1234, payload=31)))
    assert inside.sentence == "the 12 rows up to step 1235: rows inside differ, though their sums agree"
    assert (counted.lines_differ, inside.lines_differ) == (1, 1)


def test_a_diff_is_bounded(observe: Callable[..., Observed]) -> None:
    old: Any = tuple({"written": 1} for _ in range(1500))
    new: Any = tuple({"written": 2} for _ in range(1500))
    found = compare(observe(old).document(), observe(new).document())
    assert (found.lines_differ, len(found.diff)) == (1500, 40)


def test_a_local_change_is_a_local_diff(observe: Callable[..., Observed]) -> None:
    old: Any = tuple({"payload": index % 7, "written": 1} for index in range(500))
    found = compare(observe(old).document(), observe(_planted(old, 250, payload=20)).document())
    assert found.lines_differ == 2


def test_the_failure_text_shows_one_row_of_context(
    store: GoldenStore, observe: Callable[..., Observed], growth: Rows
) -> None:
    store.write(observe())
    said = store.judge(observe(_planted(growth, 1, hit=9))).text("pytest --update-goldens -k x").splitlines()
    assert said[0].startswith("golden regression acme/")
    assert said[0].endswith(": step 1, hit: expected 0, found 9")
    assert [line[4] for line in said[1:5]] == [" ", "-", "+", " "]
    assert said[5:] == ["    (1 line differ)", "accept: pytest --update-goldens -k x"]
