"""A ledger as text and back: deltas, nulls, limits, and what is refused on reading."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsuite.engine.snapshot import PoolKey, PoolSpec
from kvsuite.errors import GoldenError
from kvsuite.golden import codec
from kvsuite.golden.document import Document, Suite, TraceName, render
from kvsuite.ledger.row import ABSENT, COLUMN_NAMES, SCHEMA_VERSION
from kvsuite.ledger.timeline import PoolTimeline
from kvsuite.replay.scheduler import SEMANTICS_VERSION

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvsuite.golden.codec import Observed

SPEC = PoolSpec(key=PoolKey(), num_blocks=8, block_size=4, bytes_per_token=64)


def test_rows_hold_deltas_of_levels_and_counts_of_events(observe: Callable[..., Observed]) -> None:
    text = render(observe(steps=[0, 1, 4, 9]).document())
    rows = [line.rstrip(",") for line in text.splitlines() if line.startswith("[") and "{" in line]
    assert rows == [
        '[0, {"payload": 3, "slack": 1, "free": 28, "logical": 3, "allocated": 1, "written": 3}]',
        '[1, {"payload": 1, "slack": -1, "logical": 1, "written": 1}]',
        '[4, {"payload": 1, "slack": 3, "free": -4, "logical": 1, "allocated": 1, "written": 1}]',
        '[9, {"payload": -5, "slack": -3, "free": 8, "logical": -5, "freed": 2}]',
    ]


def test_totals_peaks_and_footprint_are_those_of_the_rows(observe: Callable[..., Observed]) -> None:
    pool = json.loads(render(observe().document()))["pools"][0]
    assert (pool["totals"]["allocated"], pool["totals"]["freed"], pool["totals"]["written"]) == (2, 2, 5)
    assert (pool["peaks"]["payload"], pool["peaks"]["slack"], pool["peaks"]["free"]) == (5, 3, 32)
    assert pool["footprint"] == [[0, 1, 11], [1, 1, 11], [2, 2, 57], [3, 2, 57]]
    assert "id_order" not in {*pool["totals"], *pool["peaks"]}


def test_the_text_is_json_with_integers_only_and_a_last_newline(observe: Callable[..., Observed]) -> None:
    text = render(observe().document())
    assert text.endswith("}\n")
    assert "\r" not in text

    def refuse(found: str) -> float:
        raise AssertionError(f"a float: {found}")

    json.loads(text, parse_float=refuse)


def test_the_same_ledger_gives_the_same_bytes(observe: Callable[..., Observed]) -> None:
    assert render(observe().document()) == render(observe().document())


def test_a_column_never_seen_is_listed_once(observe: Callable[..., Observed], growth: Any) -> None:
    rows = tuple({**row, "evicted": None, "shared_blocks": None} for row in growth)
    document = observe(rows).document()
    pool = document.pools[0]
    assert pool.absent == ["shared_blocks", "evicted"]
    assert (pool.totals["evicted"], pool.peaks["shared_blocks"]) == (None, None)
    assert all("evicted" not in row.changes for row in pool.rows)
    assert codec.read(render(document), "x") is not None


def test_a_level_after_an_absent_one_counts_from_zero(observe: Callable[..., Observed]) -> None:
    values = (5, None, None, 0, 7)
    pool = observe(tuple({"waiting": value} for value in values)).document().pools[0]
    assert [row.changes for row in pool.rows] == [
        {"waiting": 5},
        {"waiting": None},
        {},
        {"waiting": 0},
        {"waiting": 7},
    ]
    rebuilt = codec.decode_rows(pool.rows)[:, codec.COUNTED.index("waiting")].tolist()
    assert rebuilt == [5, ABSENT, ABSENT, 0, 7]
    assert pool.peaks["waiting"] == 7


def test_an_event_that_could_not_be_seen_once_has_no_total(observe: Callable[..., Observed]) -> None:
    pool = observe(({"hit": 2}, {"hit": None}, {"hit": 3})).document().pools[0]
    assert [row.changes.get("hit", 0) for row in pool.rows] == [2, None, 3]
    assert pool.totals["hit"] is None


@given(st.data())
def test_any_ledger_comes_back_as_it_was(data: st.DataObject) -> None:
    count = data.draw(st.integers(0, 6))
    cell = st.one_of(st.integers(0, 3), st.just(ABSENT))
    cells = data.draw(st.lists(cell, min_size=count * 7, max_size=count * 7))
    rows = np.zeros((count, len(COLUMN_NAMES)), np.int64)
    rows[:, [0, 1, 8, 22, 25, 26, 30]] = np.array(cells, np.int64).reshape(count, 7)
    pool = codec.encode_pool(PoolTimeline(SPEC, rows), np.arange(count))
    back = codec.decode_rows(pool.rows)
    for name in pool.absent:
        back[:, codec.COUNTED.index(name)] = ABSENT
    expected = rows[:, [COLUMN_NAMES.index(name) for name in codec.COUNTED]]
    assert np.array_equal(back, expected)


def test_every_column_is_counted_or_footprint() -> None:
    assert {*codec.COUNTED, *codec.FOOTPRINT} == set(COLUMN_NAMES)
    assert len(codec.COUNTED) + len(codec.FOOTPRINT) == len(COLUMN_NAMES)


def _long(count: int) -> PoolTimeline:
    rows = np.zeros((count, len(COLUMN_NAMES)), np.int64)
    rows[:, COLUMN_NAMES.index("payload")] = np.arange(count) % 32
    rows[:, COLUMN_NAMES.index("written")] = 1
    return PoolTimeline(SPEC, rows)


def test_2000_steps_stand_row_by_row_and_2001_in_buckets(observe: Callable[..., Observed]) -> None:
    for count, expected in ((2000, 1), (2001, 8)):
        document = observe(tuple({"written": 1} for _ in range(count))).document()
        assert document.rows_per_line == expected
        assert document.steps == count
        assert document.pools[0].totals["written"] == count


def test_a_bucket_holds_sums_changes_and_a_digest() -> None:
    pool = codec.encode_pool(_long(10), np.arange(100, 110), 4)
    assert [(b.step, b.rows) for b in pool.buckets] == [(103, 4), (107, 4), (109, 2)]
    assert [b.changes for b in pool.buckets] == [
        {"payload": 3, "written": 4},
        {"payload": 4, "written": 4},
        {"payload": 2, "written": 2},
    ]
    assert pool.rows == []


def test_a_change_inside_a_bucket_that_sums_to_nothing_changes_its_digest() -> None:
    steps = np.arange(10)
    plain, moved = _long(10), _long(10)
    moved.rows[5, COLUMN_NAMES.index("payload")] = 31
    old, new = (codec.encode_pool(p, steps, 4).buckets for p in (plain, moved))
    assert [a.changes for a in old] == [b.changes for b in new]
    assert [a.digest == b.digest for a, b in zip(old, new, strict=True)] == [True, False, True]


def test_no_file_is_larger_than_its_limit(observe: Callable[..., Observed]) -> None:
    names = codec.COUNTED[:24]
    rows = tuple({name: (7919 * (i + k)) % 100_003 for k, name in enumerate(names)} for i in range(1500))
    document = observe(rows, rows, rows).document()
    assert document.rows_per_line > 1
    assert len(render(document).encode()) <= 128 * 1024
    assert document.steps == 1500


CUTS = st.integers(1, 200)


@given(CUTS)
def test_a_golden_cut_anywhere_is_refused(percent: int) -> None:
    text = _text()
    cut = text[: len(text) * percent // 201]
    with pytest.raises(GoldenError, match=r"acme/x\.json, line \d+: .*(restore|not a golden)") as caught:
        codec.read(cut, "acme/x.json")
    assert f"line {cut.count(chr(10)) + 1}:" in str(caught.value)


def _text() -> str:
    pool = codec.encode_pool(_long(12), np.arange(12))
    document = Document(
        suite=Suite(ledger_schema=SCHEMA_VERSION, replay_semantics=SEMANTICS_VERSION),
        case="c",
        label="",
        trace=TraceName(name="t", content_hash="kvt1-0"),
        layout="l",
        dtype="d",
        recipe={},
        effective={},
        rows_per_line=1,
        pools=[pool],
        blessed=None,
        provenance={},
    )
    return render(document)


def _line_of(text: str, start: str) -> int:
    return next(n for n, line in enumerate(text.splitlines(), 1) if line.startswith(start))


def _resealed(text: str) -> str:
    """The text with a seal that fits, as a careful forger would leave it."""
    body = text[: text.index('"seal"')]
    return f'{body}"seal": "{hashlib.sha256(body.encode()).hexdigest()[:16]}"\n}}\n'


def test_an_edited_golden_is_refused_at_its_seal() -> None:
    text = _text()
    edited = text.replace('[3, {"payload": 1, "written": 1}]', '[3, {"payload": 2, "written": 1}]')
    assert edited != text
    line = _line_of(text, '"seal"')
    with pytest.raises(GoldenError, match=rf"x, line {line}: the seal .* record it again"):
        codec.read(edited, "x")


@pytest.mark.parametrize(
    ("old", "new", "line", "said"),
    [
        (
            '[3, {"payload": 1,',
            '[3, {"payload": 30,',
            '"peaks"',
            "peak of payload is 11, the rows rise to 40",
        ),
        ('"written": 12', '"written": 13', '"totals"', "total of written is 13, the rows add up to 12"),
        ('[3, {"payload": 1,', '[3, {"paylod": 1,', '"rows"', "unknown column 'paylod'"),
    ],
    ids=["a row", "a total", "a name"],
)
def test_a_golden_that_does_not_add_up_is_refused(old: str, new: str, line: str, said: str) -> None:
    text = _text()
    edited = _resealed(text.replace(old, new, 1))
    with pytest.raises(GoldenError, match=rf"x, line {_line_of(text, line)}: {said}"):
        codec.read(edited, "x")


def test_a_wrong_type_names_its_line() -> None:
    text = _text()
    recipe, totals = _line_of(text, '"recipe"'), _line_of(text, '"totals"')
    with pytest.raises(GoldenError, match=rf"x, line {recipe}: not a golden .*recipe"):
        codec.read(text.replace('"recipe": {}', '"recipe": 3'), "x")
    with pytest.raises(GoldenError, match=rf"x, line {totals}: not a golden .*totals"):
        codec.read(text.replace('"arrived": 0', '"arrived": "0"'), "x")


def test_another_format_is_refused_with_what_to_do() -> None:
    with pytest.raises(
        GoldenError, match=r"format is 'kvsuite.golden/2', this kvsuite reads 'kvsuite.golden/1'"
    ):
        codec.read(_text().replace("golden/1", "golden/2"), "x")


def test_windows_line_ends_read_alike(observe: Callable[..., Observed], tmp_path: Any) -> None:
    path = tmp_path / "x.json"
    text = render(observe().document())
    path.write_bytes(text.replace("\n", "\r\n").encode())
    assert codec.read(path.read_text(), "x") == codec.read(text, "x")
