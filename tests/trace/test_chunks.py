"""What works on a trace chunk by chunk: the same columns, text and refusals whatever the size of a chunk."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsuite.errors import TraceError
from kvsuite.trace import ragged
from kvsuite.trace.columns import BuildRules, build_trace
from kvsuite.trace.identity import canonical_parts, content_hash
from kvsuite.trace.load import hit_tokens, load_trace, summarize
from kvsuite.trace.model import Trace, TraceSource
from kvsuite.trace.parsed import Batch, ParsedRows
from kvsuite.trace.readers.registry import detect
from kvsuite.trace.readers.source import ReadOptions, open_trace_file
from kvsuite.trace.rows import LABELS, Row, trace_of
from kvsuite.trace.writer import canonical_lines, write_trace

if TYPE_CHECKING:
    from pathlib import Path


def read(path: Path, batch_rows: int) -> Trace:
    with open_trace_file(path, batch_rows) as file:
        return detect(file).read(file, ReadOptions(sort=True))


def assert_same(found: Trace, expected: Trace) -> None:
    for column in fields(Trace):
        before, after = getattr(expected, column.name), getattr(found, column.name)
        if isinstance(before, np.ndarray):
            np.testing.assert_array_equal(after, before, err_msg=column.name)
        else:
            assert after == before, column.name


@st.composite
def canonical_text(draw: st.DrawFn) -> str:
    """A canonical file of many of the keys, rows in order, times of any number of decimals."""
    rows = [json.dumps({"schema": "kvsuite.trace", "version": 1, "block_size": 2, "tail": "ceil"})]
    time = draw(st.integers(0, 10**13))
    for k in range(draw(st.integers(1, 12))):
        time += draw(st.integers(0, 10**9))
        length = draw(st.integers(1, 6))
        ids = draw(st.none() | st.lists(st.sampled_from([0, 1, "1", 2**53 - 1]), min_size=3, max_size=3))
        row: dict[str, Any] = {"input_length": length, "output_length": draw(st.integers(0, 3))}
        if ids is not None:
            row["hash_ids"] = ids[: -(-length // 2)]
        if draw(st.booleans()):
            row |= {"session_id": draw(st.sampled_from("ab")), "turn": draw(st.none() | st.integers(0, 3))}
        if draw(st.booleans()):
            row["request_id"] = draw(st.sampled_from([f"r{k}", f"q{k}"]))
        if draw(st.booleans()):
            row["scope"] = draw(st.sampled_from(["", "x", "y"]))
        places = draw(st.integers(0, 9))
        stamp = str(time) if places == 0 else f"{time // 10**places}.{time % 10**places:0{places}}"
        time = max(time, -(-int(stamp.replace(".", "")) // 10**places) * 10**places)
        rows.append(f'{{"timestamp":{stamp},' + json.dumps(row)[1:])
    return "\n".join(rows) + "\n"


@given(canonical_text(), st.sampled_from([1, 2, 7]), st.sampled_from([1, 2, 5]))
def test_batches_and_chunks_of_any_size_change_nothing(
    tmp_path_factory: pytest.TempPathFactory, text: str, size: int, chunk: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "streamed.jsonl"
    path.write_text(text, encoding="utf-8")
    whole = load_trace(path, sort=True)
    expected = content_hash(whole), hit_tokens(whole)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ragged, "CHUNK", chunk)
        found = read(path, size)
        assert_same(found, whole)
        assert (content_hash(found), hit_tokens(found)) == expected
        again = path.with_name("again.jsonl")
        write_trace(found, again)
        assert canonical_lines(read(again, size)) == canonical_lines(whole)


BROKEN: tuple[dict[str, list[int]], ...] = (
    {"arrival_us": [0, 5, 5, 4, 9]},
    {"output_tokens": [0, 0, 0, -1, -1], "prompt_tokens": [8, 8, 8, 8, 0]},
    {"nodes": [0, 1, 0, 2, 1, 2, 3, 1, 4, 0]},
    {"hashed_tokens": [8, 8, 8, 8, 3]},
    {"nodes": [0, 1, 0, 2, 3, 4, 3, -2, 3, 5]},
)


@pytest.mark.parametrize("columns", BROKEN)
@pytest.mark.parametrize("chunk", [1, 2, 3])
def test_a_rule_that_a_later_chunk_breaks_is_told_the_same(
    columns: dict[str, list[int]], chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [Row(timestamp=k, input_length=8, output_length=0, hash_ids=[1, k]) for k in range(5)]
    trace = trace_of(rows, TraceSource("test", "t"), block_size=4)
    changed: dict[str, Any] = {name: np.array(values) for name, values in columns.items()}
    told = []
    for size in (100, chunk):
        monkeypatch.setattr(ragged, "CHUNK", size)
        with pytest.raises(TraceError) as caught:
            replace(trace, **changed)
        told.append(str(caught.value))

    assert told[0] == told[1]


def test_times_of_cancellation_stay_with_their_requests_when_rows_are_dropped() -> None:
    rows = ParsedRows(LABELS)
    rows.extend(
        Batch(
            lines=[1, 2, 3, 4],
            times=[40, 30, 20, 10],
            prompt_tokens=[5, 0, 7, 8],
            output_tokens=[1, 1, 1, 1],
            cancel_at=[45, 31, None, 12],
        )
    )
    trace = build_trace(
        rows, TraceSource("test", "t"), BuildRules(time_unit="us", drop_zero_prompts=True, sort=True)
    )

    assert trace.prompt_tokens.tolist() == [8, 7, 5]
    assert trace.arrival_us.tolist() == [0, 10, 30]
    assert trace.cancel_at_us.tolist() == [2, -1, 35]
    assert trace.request_ids == ("r3", "r2", "r0")


def test_the_text_that_is_hashed_comes_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = load_trace("churn")
    whole = b"".join(canonical_parts(trace))
    monkeypatch.setattr(ragged, "CHUNK", 50)
    parts = list(canonical_parts(trace))

    assert len(parts) > len(trace) / 50
    assert b"".join(parts) == whole
    assert summarize(trace).content_hash == content_hash(trace)
