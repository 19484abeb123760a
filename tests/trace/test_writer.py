"""Writing: a round trip without loss, whole files or none, and plain Mooncake with its losses named."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsuite.errors import TraceError
from kvsuite.trace.identity import content_hash
from kvsuite.trace.load import load_trace
from kvsuite.trace.model import Fill, Trace, TraceSource
from kvsuite.trace.rows import Row, trace_of
from kvsuite.trace.writer import canonical_lines, export_mooncake, mooncake_losses, write_trace

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvsuite.trace.rows import Tail
    from kvsuite.trace.trie import RawId

SOURCE = TraceSource("mooncake", "m", "sha256:00", "Apache-2.0")


def assert_same(found: Trace, expected: Trace) -> None:
    for column in fields(Trace):
        before, after = getattr(expected, column.name), getattr(found, column.name)
        if isinstance(before, np.ndarray):
            np.testing.assert_array_equal(after, before, err_msg=column.name)
        else:
            assert after == before, column.name


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    size = draw(st.sampled_from([0, 1, 4, 512]))
    tail: Tail = draw(st.sampled_from(["ceil", "floor"]))
    optional = st.one_of(st.none(), st.integers(0, 40))
    rows: list[Row] = []
    time = 0
    for index in range(draw(st.integers(1, 6))):
        time += draw(st.integers(0, 3)) if index else 0
        prompt, output = draw(st.integers(1, 20)), draw(st.integers(0, 8))
        row = Row(request_id=f"q{index}", timestamp=time, input_length=prompt, output_length=output)
        if index and draw(st.booleans()):
            parent = draw(st.sampled_from(rows))
            row.parent, row.input_length = parent.request_id, parent.input_length
            row.fork_at = parent.input_length + draw(st.integers(0, parent.output_length))
            row.fork, row.output_length = "beam", row.fork_at - row.input_length + output
        elif size and draw(st.booleans()):
            finished = draw(st.booleans())
            covered = prompt + (output if finished else 0)
            count = -(-covered // size) if tail == "ceil" else covered // size
            ids: list[RawId] = draw(st.lists(st.sampled_from([0, 1, "x"]), min_size=count, max_size=count))
            row.output_hash_ids, row.hash_ids = (ids, None) if finished else (None, ids)
        if draw(st.booleans()):
            row.session_id, row.turn = draw(st.sampled_from("ab")), draw(optional)
        if draw(st.booleans()):
            row.cancel_after = draw(st.integers(0, row.output_length))
        elif draw(st.booleans()):
            row.cancel_at = time + draw(st.integers(0, 9))
        extra = draw(optional)
        row.max_output_length = None if extra is None else row.output_length + extra
        row.priority = draw(st.integers(-2, 2))
        rows.append(row)
    trace = trace_of(rows, SOURCE, block_size=size, tail=tail, filled=(Fill("cap", "cap:tokens=1", 2),))
    return replace(trace, rows_read=len(rows) + 3, dropped={"zero_prompt": 3})


@given(traces())
def test_reading_what_was_written_gives_the_same_trace(
    tmp_path_factory: pytest.TempPathFactory, trace: Trace
) -> None:
    path = tmp_path_factory.getbasetemp() / "round-trip.jsonl"
    write_trace(trace, path)

    assert_same(load_trace(path), trace)
    assert json.loads(path.read_bytes().splitlines()[0])["content_hash"] == content_hash(trace)


def plain() -> Trace:
    rows = [
        Row(request_id="a", timestamp=0, input_length=1030, output_length=7, hash_ids=[4, 5, 6]),
        Row(request_id="b", timestamp=250, input_length=600, output_length=9, hash_ids=[4, 7]),
    ]
    return trace_of(rows, SOURCE, block_size=512)


def test_lines_by_hand() -> None:
    header, *lines = [
        json.loads(line)
        for line in canonical_lines(replace(plain(), arrival_us=np.array([0, 250_001]))).splitlines()
    ]

    assert {key: header[key] for key in ("schema", "version", "block_size", "tail", "requests")} == {
        "schema": "kvsuite.trace",
        "version": 1,
        "block_size": 512,
        "tail": "ceil",
        "requests": 2,
    }
    assert lines == [
        {"request_id": "a", "timestamp": 0, "input_length": 1030, "output_length": 7, "hash_ids": [0, 1, 2]},
        {
            "request_id": "b",
            "timestamp": 250.001,
            "input_length": 600,
            "output_length": 9,
            "hash_ids": [0, 3],
        },
    ]


def test_a_gz_name_compresses_and_equal_traces_give_equal_bytes(tmp_path: Path) -> None:
    first, second = tmp_path / "a.jsonl.gz", tmp_path / "b.jsonl.gz"
    write_trace(plain(), first)
    write_trace(plain(), second)

    assert first.read_bytes() == second.read_bytes()
    assert first.read_bytes()[4:8] == bytes(4), "gzip's time of writing"
    assert gzip.decompress(first.read_bytes()) == canonical_lines(plain())
    assert_same(load_trace(first), plain())


def test_a_folder_that_is_not_there_loses_nothing(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"cannot write .*absent.*No such file.*choose a folder"):
        write_trace(plain(), tmp_path / "absent" / "trace.jsonl")


FULL_DISK = """
import resource, sys
from pathlib import Path
from kvsuite.errors import TraceError
from kvsuite.trace.atomic import write_whole
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
try:
    write_whole(Path(sys.argv[1]), b"x" * 8192)
except TraceError as error:
    print(error)
"""


@pytest.mark.parametrize("name", ["", ".", "folder"])
def test_a_folder_is_no_file_to_write(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "folder").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(TraceError, match="it is a folder; name a file"):
        write_trace(plain(), Path(name))
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def test_a_full_disk_leaves_the_older_file_and_no_part(put: Callable[..., Path]) -> None:
    path = put("older", "trace.jsonl")
    found = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(path)], capture_output=True, text=True, check=True
    )

    assert f"cannot write {path}: File too large" in found.stdout
    assert [other.name for other in path.parent.iterdir()] == ["trace.jsonl"]
    assert path.read_text() == "older"


def test_nodes_under_no_one_rule_cannot_be_written(tmp_path: Path) -> None:
    trace = plain()
    mixed = replace(
        trace,
        hashed_tokens=np.array([1030, 512]),
        nodes=np.array([0, 1, 2, 0]),
        node_offsets=np.array([0, 3, 4]),
    )

    with pytest.raises(TraceError, match="request b: prefix nodes cover 512 of 600 prompt tokens"):
        write_trace(mixed, tmp_path / "trace.jsonl")
    assert list(tmp_path.iterdir()) == []


def test_plain_mooncake_without_loss(tmp_path: Path) -> None:
    path = tmp_path / "mooncake.jsonl"

    assert export_mooncake(plain(), path) == ()
    assert [json.loads(line) for line in path.read_text().splitlines()] == [
        {"timestamp": 0, "input_length": 1030, "output_length": 7, "hash_ids": [0, 1, 2]},
        {"timestamp": 250, "input_length": 600, "output_length": 9, "hash_ids": [0, 3]},
    ]
    assert content_hash(load_trace(path)) == content_hash(plain())


LOSSY: tuple[tuple[dict[str, Any], str], ...] = (
    ({"cancel_after": 1}, "1 cancellations"),
    ({"cancel_at": 300}, "1 cancellations"),
    ({"max_output_length": 20}, "caps on the output"),
    ({"session_id": "s"}, "sessions and turns"),
    ({"priority": 1}, "priorities"),
    ({"hash_ids": None}, "1 requests of unknown sharing"),
    ({"hash_ids": None, "output_hash_ids": [4, 7]}, "prefix ids of 1 answers"),
)


@pytest.mark.parametrize(("keys", "loss"), LOSSY)
def test_losses_are_refused_or_listed(tmp_path: Path, keys: dict[str, Any], loss: str) -> None:
    row: dict[str, Any] = {"timestamp": 250, "input_length": 600, "output_length": 9, "hash_ids": [4, 7]}
    trace = trace_of([Row(**{**row, **keys})], SOURCE, block_size=512)
    path = tmp_path / "mooncake.jsonl"

    with pytest.raises(TraceError, match=f"lost would be: {loss}"):
        export_mooncake(trace, path)
    assert not path.exists()
    (lost,) = export_mooncake(trace, path, accept_losses=True)
    assert loss in lost


def test_forks_become_requests_with_their_parents_ids(tmp_path: Path) -> None:
    rows = [
        Row(request_id="a", timestamp=0, input_length=6, output_length=3, hash_ids=[4, 5]),
        Row(
            request_id="c",
            timestamp=0.25,
            input_length=6,
            output_length=2,
            parent="a",
            fork="beam",
            fork_at=7,
        ),
    ]
    trace = trace_of(rows, SOURCE, block_size=4)
    path = tmp_path / "mooncake.jsonl"

    assert export_mooncake(trace, path, accept_losses=True) == (
        "1 forks become requests of their own",
        "times finer than a millisecond are rounded",
        "the block size 4: readers take 512",
    )
    assert [json.loads(line)["hash_ids"] for line in path.read_text().splitlines()] == [[0, 1], [0, 1]]


def test_the_floor_rule_is_a_loss() -> None:
    rows = [Row(timestamp=0, input_length=600, output_length=9, hash_ids=[4])]

    assert mooncake_losses(trace_of(rows, SOURCE, block_size=512, tail="floor")) == (
        "the tail rule floor: readers take ceil",
    )
