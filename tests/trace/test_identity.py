"""The content hash: by hand, by the documented example, and by what must and must not change it."""

from __future__ import annotations

import hashlib
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from kvsuite.trace.identity import canonical_text, content_hash
from kvsuite.trace.load import load_trace
from kvsuite.trace.model import Fill, TraceSource

if TYPE_CHECKING:
    from collections.abc import Callable

DOCUMENT = Path(__file__).parents[2] / "docs" / "traces.md"

HEADER: dict[str, Any] = {"block_size": 4, "tail": "ceil"}
ROWS: tuple[dict[str, Any], ...] = (
    {"request_id": "a", "timestamp": 0, "input_length": 10, "output_length": 6, "hash_ids": [1, 2, 3]},
    {"request_id": "b", "timestamp": 5, "input_length": 10, "output_length": 6, "hash_ids": [1, 2, 3]},
    {"request_id": "c", "timestamp": 5, "input_length": 9, "output_length": 7, "hash_ids": [1, 2, 4]},
    {
        "request_id": "d",
        "timestamp": 8,
        "input_length": 8,
        "output_length": 9,
        "output_hash_ids": [1, 5, 6, 7, 8],
        "session_id": "s",
        "turn": 1,
    },
    {"timestamp": 9, "input_length": 8, "output_length": 4, "hash_ids": [1, 5], "session_id": "s", "turn": 2},
    {
        "timestamp": 9,
        "input_length": 8,
        "output_length": 4,
        "hash_ids": None,
        "parent": "d",
        "fork": "beam",
        "fork_at": 9,
    },
)


def changed(index: int, **keys: Any) -> list[dict[str, Any]]:
    return [{**row, **keys} if k == index else row for k, row in enumerate(ROWS)]


def with_other_ids(row: dict[str, Any]) -> dict[str, Any]:
    keys = [key for key in ("hash_ids", "output_hash_ids") if row.get(key)]
    return {**row, **{key: [f"h{raw * 31}" for raw in row[key]] for key in keys}}


def section(pattern: str) -> str:
    found = re.search(pattern, DOCUMENT.read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None
    return found[1]


def test_the_documented_example_holds(put: Callable[..., Path]) -> None:
    example = section(r"```jsonl\n(.*?)```")
    text = section(r"has this text\n\n```text\n(.*?)```").encode()
    stated = section(r"and this hash\n\n```text\n(.*?)\n```")

    trace = load_trace(put(example, "example.jsonl"))

    assert canonical_text(trace) == text
    assert content_hash(trace) == stated == "kvt1-" + hashlib.sha256(text).hexdigest()


def test_text_of_a_trace_without_ids(put: Callable[..., Path]) -> None:
    table = "arrived_at,num_prefill_tokens,num_decode_tokens\n100.5,17,3\n100.7500005,40,8\n100.7500015,1,0\n"

    text = canonical_text(load_trace(put(table)))

    assert text == b"kvtrace-canonical/1 block=0\n0 17 3\n250000 40 8\n250002 1 0\n"


def test_partial_tails_that_never_recur_leave_no_block_size(put_rows: Callable[..., Path]) -> None:
    rows = [
        {"timestamp": 0, "input_length": 3, "output_length": 1, "hash_ids": [7]},
        {"timestamp": 0, "input_length": 2, "output_length": 1, "hash_ids": [7]},
    ]

    text = canonical_text(load_trace(put_rows(*rows, header=HEADER)))

    assert text == b"kvtrace-canonical/1 block=0\n0 3 1\n0 2 1\n"


def test_a_recurring_tail_past_the_prompt_says_how_far_it_reaches(put_rows: Callable[..., Path]) -> None:
    row = {"timestamp": 0, "input_length": 5, "output_length": 2, "output_hash_ids": [1, 2]}

    text = canonical_text(load_trace(put_rows(row, row, header=HEADER)))

    assert text == b"kvtrace-canonical/1 block=4\n0 5 2 b=0 q=0:7\n0 5 2 b=0 q=0:7\n"


@pytest.mark.parametrize(
    "rows",
    [
        pytest.param(changed(0, output_length=7), id="output length"),
        pytest.param(changed(2, input_length=10), id="prompt length"),
        pytest.param(changed(5, timestamp=9.001), id="a microsecond"),
        pytest.param(changed(2, hash_ids=[1, 9, 4]), id="a full block no longer shared"),
        pytest.param(changed(1, hash_ids=[1, 2, 9]), id="a tail no longer shared"),
        pytest.param(changed(3, output_hash_ids=[1, 4, 6, 7, 8]), id="block of a finished sequence"),
        pytest.param(changed(3, output_hash_ids=None, hash_ids=[1, 5]), id="the answer's blocks unknown"),
        pytest.param(changed(5, fork="sample", fork_at=8), id="kind of fork"),
        pytest.param(changed(5, fork_at=10), id="fork point"),
        pytest.param(changed(5, parent=None, fork=None, fork_at=None), id="no fork"),
        pytest.param(changed(0, cancel_after=0), id="cancelled before the first token"),
        pytest.param(changed(0, cancel_after=3), id="cancelled after three"),
        pytest.param(changed(0, cancel_at=3), id="cancelled at a time"),
        pytest.param(changed(0, max_output_length=7), id="cap"),
        pytest.param(changed(0, max_output_length=6), id="a cap equal to the output"),
        pytest.param(changed(0, priority=1), id="priority"),
        pytest.param(changed(0, priority=-1), id="negative priority"),
        pytest.param(changed(0, session_id="s"), id="session"),
        pytest.param(changed(3, session_id="other"), id="session left"),
        pytest.param(changed(3, turn=3), id="turn"),
        pytest.param(changed(3, turn=None), id="no turn"),
        pytest.param([ROWS[0], ROWS[2], ROWS[1], *ROWS[3:]], id="order within a batch"),
        pytest.param(list(ROWS[:5]), id="a request less"),
    ],
)
def test_every_change_of_a_lifecycle_changes_the_hash(
    rows: list[dict[str, Any]], put_rows: Callable[..., Path]
) -> None:
    before = load_trace(put_rows(*ROWS, header=HEADER, name="before.jsonl"))
    after = load_trace(put_rows(*rows, header=HEADER, name="after.jsonl"))

    assert content_hash(after) != content_hash(before)


def test_which_of_two_equal_requests_is_the_parent_counts(put_rows: Callable[..., Path]) -> None:
    twins = [{"request_id": name, "timestamp": 0, "input_length": 4, "output_length": 3} for name in "ab"]
    child = {"timestamp": 0, "input_length": 4, "output_length": 1, "fork": "sample", "fork_at": 4}
    traces = [
        load_trace(put_rows(*twins, {**child, "parent": name}, header={}, name=f"{name}.jsonl"))
        for name in "ab"
    ]

    assert content_hash(traces[0]) != content_hash(traces[1])


def test_cancel_times_differ(put_rows: Callable[..., Path]) -> None:
    traces = [
        load_trace(put_rows(*changed(0, cancel_at=end), header=HEADER, name=f"{end}.jsonl")) for end in (3, 4)
    ]

    assert content_hash(traces[0]) != content_hash(traces[1])


@pytest.mark.parametrize(
    "rows",
    [
        pytest.param([{**row, "timestamp": row["timestamp"] + 1.7e12} for row in ROWS], id="epoch times"),
        pytest.param(changed(2, hash_ids=[1, 2, 77]), id="a tail used once"),
        pytest.param(changed(0, session_id="alone"), id="a session used once"),
        pytest.param(changed(0, session_id="alone", turn=4), id="its turn"),
        pytest.param(changed(0, obs={"ttft_ms": 12.5}, x_note="seen"), id="observations"),
        pytest.param(changed(3, session_id="t")[:4] + changed(4, session_id="t")[4:], id="a session's name"),
        pytest.param([with_other_ids(row) for row in ROWS], id="ids as other strings"),
        pytest.param(changed(3, hash_ids=[1, 5]), id="prompt ids beside those of the finished sequence"),
    ],
)
def test_what_says_nothing_does_not_change_the_hash(
    rows: list[dict[str, Any]], put_rows: Callable[..., Path]
) -> None:
    before = load_trace(put_rows(*ROWS, header=HEADER, name="before.jsonl"))
    after = load_trace(put_rows(*rows, header=HEADER, name="after.jsonl"))

    assert content_hash(after) == content_hash(before)


def test_names_sources_and_fills_are_not_hashed(put_rows: Callable[..., Path]) -> None:
    trace = load_trace(put_rows(*ROWS, header=HEADER))
    other = replace(
        trace,
        source=TraceSource("azure", "conv", "sha256:0", "CC-BY-4.0"),
        filled=(Fill("cancel", "cancel:every=2", 5),),
        request_ids=tuple(f"other {name}" for name in trace.request_ids),  # type: ignore[misc]
    )

    assert content_hash(other) == content_hash(trace)


def test_unknown_sharing_and_none_ask_the_same(put_rows: Callable[..., Path]) -> None:
    base = {"timestamp": 0, "input_length": 9, "output_length": 2}
    unknown = load_trace(put_rows(base, header=HEADER, name="unknown.jsonl"))
    none = load_trace(put_rows({**base, "hash_ids": []}, header=HEADER, name="none.jsonl"))

    assert (unknown.hashed_tokens[0], none.hashed_tokens[0]) == (-1, 0)
    assert content_hash(unknown) == content_hash(none)


def test_a_later_part_counts_its_times_from_its_own_start(put_rows: Callable[..., Path]) -> None:
    rows = changed(2, cancel_at=6)
    whole = load_trace(put_rows(*rows, header=HEADER, name="whole.jsonl"))
    part = load_trace(put_rows(*rows[1:3], header=HEADER, name="part.jsonl"))

    assert b" x=1000" in canonical_text(part)
    assert canonical_text(whole.select(np.array([1, 2]))) == canonical_text(part)


def test_node_numbers_do_not_matter(put_rows: Callable[..., Path]) -> None:
    trace = load_trace(put_rows(*ROWS, header=HEADER))
    numbers = np.random.RandomState(3).permutation(1000)

    assert content_hash(replace(trace, nodes=numbers[trace.nodes])) == content_hash(trace)
