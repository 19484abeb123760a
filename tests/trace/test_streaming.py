"""Files read batch by batch: the same trace and the same refusals whatever the size of a batch."""

from __future__ import annotations

import gzip
import json
import os
import threading
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from kvsuite.errors import TraceError
from kvsuite.trace.identity import content_hash
from kvsuite.trace.load import load_trace
from kvsuite.trace.model import Trace
from kvsuite.trace.readers import azure as azure_reader
from kvsuite.trace.readers import stream
from kvsuite.trace.readers.registry import detect
from kvsuite.trace.readers.source import ReadOptions, open_trace_file

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SIZES = [1, 2, 7, 10_000]


def read(path: Path, batch_rows: int, **options: Any) -> Trace:
    with open_trace_file(path, batch_rows) as file:
        return detect(file).read(file, ReadOptions(**options))


def refusal(path: Path, batch_rows: int) -> str:
    with pytest.raises(TraceError) as caught:
        read(path, batch_rows)
    return str(caught.value)


def assert_same(found: Trace, expected: Trace) -> None:
    for column in fields(Trace):
        before, after = getattr(expected, column.name), getattr(found, column.name)
        if isinstance(before, np.ndarray):
            np.testing.assert_array_equal(after, before, err_msg=column.name)
        else:
            assert after == before, column.name


def azure(rows: int = 30) -> str:
    lines = [f"2030-01-02 18:15:{k:02}.{k * 37 % 100:02}00000,{k * 7 % 50},{k}" for k in range(rows)]
    return "\r\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *lines])


def vidur(rows: int = 30) -> str:
    lines = [f"{k}.{k * 137 % 1000:017}1,{k % 5},{k}\n" for k in range(rows)]
    return "arrived_at,num_prefill_tokens,num_decode_tokens\n" + "".join(lines)


def mooncake_rows(rows: int = 30) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for k in range(rows):
        length = 700 * (k % 4) + 5 * (k % 2)
        ids = [*range(k % 3, k % 3 + -(-length // 512))]
        found.append({"timestamp": 250 * k, "input_length": length, "output_length": k, "hash_ids": ids})
        if k % 5 == 0:
            found[-1]["session_id"] = k // 10
        if k > 20:
            found[-1]["request_id"] = f"q{k}"
    return found


def json_lines(rows: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def canonical_rows() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [
        {"schema": "kvsuite.trace", "version": 1, "block_size": 4, "hash_id_scope": "local"}
    ]
    for k in range(30):
        row: dict[str, Any] = {"timestamp": 10 + k * 1.25, "input_length": 10, "output_length": 6}
        if k % 6 == 5:
            row |= {"parent": f"p{k - 3}", "fork": "beam", "fork_at": 12}
        elif k % 6 == 2:
            row |= {"request_id": f"p{k}", "output_hash_ids": [k % 2, "1", 7, 8], "session_id": f"s{k % 4}"}
            row |= {"scope": f"x{k % 9}"}
        elif k % 6 == 4:
            row |= {"cancel_at": row["timestamp"] + 1.0625, "priority": k, "max_output_length": 9}
        elif k % 6 == 3:
            row |= {"cancel_after": 2, "session_id": "s1", "turn": k, "hash_ids": [0, "1", 2]}
        found.append(row)
    return found


FILES: dict[str, str] = {
    "azure": azure(),
    "vidur": vidur(),
    "mooncake": json_lines(mooncake_rows()),
    "canonical": json_lines(canonical_rows()),
}


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("size", SIZES)
def test_a_batch_of_any_size_gives_the_same_trace(name: str, size: int, put: Callable[..., Path]) -> None:
    path = put(FILES[name])
    whole = load_trace(path)

    assert whole.source.format == name
    assert len(whole) + sum(whole.dropped.values()) == 30
    assert_same(read(path, size), whole)


@pytest.mark.parametrize("name", FILES)
def test_rows_out_of_order_are_numbered_as_they_stand_in_the_trace(
    name: str, put: Callable[..., Path]
) -> None:
    """Rows are put back in order by the reader, so that nothing tells the two files apart but their names."""
    first, *rest = FILES[name].split("\n")
    rows = [row.rstrip("\r") for row in rest if row]
    if name == "mooncake":
        rows, head = [first, *rows], []
    else:
        head = [first]
    if name == "canonical":
        rows = [row for row in rows if '"parent"' not in row]
    mixed = [rows[k * 7 % len(rows)] for k in range(len(rows))]
    assert len(set(mixed)) == len(rows)

    expected = read(put("\n".join([*head, *rows]) + "\n", "a"), 3)
    for size in SIZES:
        found = read(put("\n".join([*head, *mixed]) + "\n", "b"), size, sort=True)
        np.testing.assert_array_equal(found.nodes, expected.nodes)
        np.testing.assert_array_equal(found.session, expected.session)
        np.testing.assert_array_equal(found.arrival_us, expected.arrival_us)
        assert content_hash(found) == content_hash(expected)


FAULTS: dict[str, tuple[str, str]] = {
    "cell": (azure().replace(",20\r", ",x\r"), "'x' @ line 22 column GeneratedTokens"),
    "stamp": (azure().replace("18:15:21", "18-15-21"), "@ line 23 column TIMESTAMP"),
    "two cells": (azure().replace("18:15:09", "18-15-09").replace(",8\r", ",y\r"), "'y' @ line 10 column"),
    "cells": (azure().replace(",20\r", "\r"), "2 cells @ line 22: expected 3"),
    "bad cell before bad count": (
        azure().replace(",20\r", "\r").replace(",19\r", ",x\r"),
        "'x' @ line 21 column GeneratedTokens",
    ),
    "zones": (azure().replace("18:15:25.2500000", "18:15:25Z"), "a time zone are mixed"),
    "csv": (vidur().replace(",19\n", ',"19"1\n'), "line 21 is not CSV"),
    "back": (vidur().replace("\n19.", "\n9."), "from 18."),
    "negative": (vidur().replace(",19\n", ",-19\n"), "negative num_decode_tokens -19 @ line 21"),
    "json": (
        FILES["mooncake"].replace('"output_length": 17,', '"output_length": 17;'),
        "line 18 is not JSON",
    ),
    "key": (FILES["mooncake"].replace('"output_length": 17,', '"output_length": 17, "a": 1,'), "line 18 $"),
    "cut": (FILES["mooncake"][:-20], "the file is cut off @ line 30"),
    "cut cells": (azure()[:-3], "the file is cut off @ line 31"),
    "count": (
        FILES["mooncake"].replace('"input_length": 2105', '"input_length": 2705', 1),
        "5 ids for 2705 tokens @ line 4",
    ),
    "parent": (FILES["canonical"].replace('"parent": "p20"', '"parent": "p26"'), "parent p26 is not before"),
    "cancel": (FILES["canonical"].replace("38.5625", "37.25"), "@ line 24 $.cancel_at"),
    "rule": (FILES["canonical"].replace('"turn": 21', '"turn": 21, "cancel_at": 90'), "r21 @ line 23"),
    "session": (
        FILES["canonical"]
        .replace(', "session_id": "s1", "turn": 27', "")
        .replace(', "session_id": "s1", "turn": 9', ""),
        "@ line 11 $.session_id",
    ),
    "after blank lines": ("\n \r\n" + azure().replace(",20\r", ",x\r"), "'x' @ line 24 column"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_in_any_batch_names_its_line(name: str, put: Callable[..., Path]) -> None:
    text, says = FAULTS[name]
    path = put(text)
    told = {refusal(path, size) for size in SIZES}

    assert len(told) == 1
    assert says in told.pop()


def test_a_byte_that_is_no_text_is_named_by_its_place_in_the_file(put: Callable[..., Path]) -> None:
    text = (b"\xef\xbb\xbf\n \n" + vidur().encode()).replace(b",20\n", b",\xe9\n")
    path = put(text)

    # The byte-order mark does not count, the blank lines before the header do.
    expected = f"byte {text.index(0xE9) - 3} is not UTF-8"
    assert all(expected in refusal(path, size) for size in SIZES)


def test_letters_before_a_byte_that_is_no_text_count_by_their_bytes(put: Callable[..., Path]) -> None:
    head = (
        "TIMESTAMP,ContextTokens,GeneratedTokens,NumImages\n2030-01-02 03:04:05,7,1,\u00e9\u20ac\n".encode()
    )

    assert f"byte {len(head) + 2} is not UTF-8" in refusal(put(head + b"20\xe9"), 1)


@pytest.mark.parametrize("name", FILES)
def test_packaging_changes_nothing(name: str, put: Callable[..., Path]) -> None:
    data = FILES[name].encode().replace(b"\r\n", b"\n")
    half = data.index(b"\n", len(data) // 2) - 3
    twins = {
        "crlf": data.replace(b"\n", b"\r\n"),
        "no end": data.rstrip(b"\n"),
        "gzip": gzip.compress(data),
        "members": gzip.compress(data[:half]) + gzip.compress(b"") + gzip.compress(data[half:]),
        "blank lines": b"\n\n" + data.replace(b"\n", b"\n \n"),
    }
    expected = content_hash(load_trace(put(data, "plain")))

    for twin, packed in twins.items():
        path = put(packed, twin)
        assert {content_hash(read(path, size)) for size in SIZES} == {expected}, twin


def test_a_stream_cut_after_many_rows_is_refused(put: Callable[..., Path]) -> None:
    rows = "".join(f"{k},{k * 7919 % 997 + 1},{k * 31 % 600}\n" for k in range(20_000))
    packed = gzip.compress(("arrived_at,num_prefill_tokens,num_decode_tokens\n" + rows).encode())
    path = put(packed[: len(packed) // 2])

    assert {refusal(path, size) for size in (7, 10_000)} == {
        "the gzip stream is cut off; fetch or write the file again"
    }


def test_old_line_ends_alone_make_lines_of_a_table(put: Callable[..., Path]) -> None:
    path = put("TIMESTAMP,ContextTokens,GeneratedTokens\r2030-01-02 03:04:05,7,1\n2030-01-02 03:04:06,8,x\r")
    for size in (1, 9):
        with open_trace_file(path, size) as file, pytest.raises(TraceError, match="'x' @ line 3"):
            azure_reader.read(file, ReadOptions())


def test_a_line_without_end_is_refused(put: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "MAX_LINE_BYTES", 100)
    header = '{"schema":"kvsuite.trace","version":1}\n'
    with pytest.raises(TraceError, match="a line is longer than 100 bytes"):
        load_trace(put(header + " " * 101 + "{}"))


def test_a_pipe_is_read_once(put: Callable[..., Path], tmp_path: Path) -> None:
    """What cannot be read twice, such as the output of a program, is a trace file too."""
    plain = load_trace(put(FILES["mooncake"], "plain"))
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_bytes, args=(FILES["mooncake"].encode(),))
    writer.start()
    found = load_trace(pipe)
    writer.join()

    assert found.source.digest == plain.source.digest
    assert content_hash(found) == content_hash(plain)
