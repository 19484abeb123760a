"""The canonical form: every key it carries, and every way a file can deny its own header."""

from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING, Any

import pytest

from kvsuite.errors import AmbiguousTrace, TraceError
from kvsuite.trace.identity import content_hash
from kvsuite.trace.load import load_trace
from kvsuite.trace.model import Fill, ForkKind, TraceSource

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

ROW: dict[str, Any] = {"timestamp": 0, "input_length": 10, "output_length": 6}
PARENT = {**ROW, "request_id": "p"}
CHILD = {**ROW, "request_id": "c", "parent": "p", "fork": "sample", "fork_at": 10}


def test_every_key_is_carried(put_rows: Callable[..., Path]) -> None:
    header = {
        "block_size": 4,
        "tail": "ceil",
        "requests": 5,
        "source": {"format": "mooncake", "digest": "sha256:00", "license": "Apache-2.0", "name": "m"},
        "filled": [{"name": "cap", "rule": "cap:tokens=9", "seed": 3}],
        "dropped": {"zero_prompt": 2},
        "added": 1,
        "x_written_by": "someone",
    }
    rows = [
        {**ROW, "request_id": "a", "timestamp": 52.125, "hash_ids": [0, "1", 2], "max_output_length": 9},
        {**ROW, "request_id": "b", "timestamp": 52.125, "parent": "a", "fork": "beam", "fork_at": 12},
        {**ROW, "timestamp": 60, "output_hash_ids": [0, "1", 7, 8], "session_id": "s", "turn": 0},
        {
            **ROW,
            "timestamp": 61,
            "session_id": "s",
            "turn": 4,
            "priority": -2,
            "cancel_after": 0,
            "obs": {"a": 1},
        },
        {
            **ROW,
            "timestamp": 61,
            "hash_ids": [],
            "parent": "b",
            "fork": "spawn",
            "fork_at": 0,
            "cancel_at": 61.5,
        },
    ]
    trace = load_trace(put_rows(*rows, header=header))

    assert trace.request_ids == ("a", "b", "r2", "r3", "r4")
    assert trace.arrival_us.tolist() == [0, 0, 7875, 8875, 8875]
    assert trace.hashed_tokens.tolist() == [10, -1, 16, -1, 0]
    assert trace.nodes.tolist() == [0, 1, 2, 0, 1, 3, 4]
    assert trace.max_output_tokens.tolist() == [9, -1, -1, -1, -1]
    assert trace.parent.tolist() == [-1, 0, -1, -1, 1]
    assert trace.fork_kind.tolist() == [-1, ForkKind.BEAM, -1, -1, ForkKind.SPAWN]
    assert trace.fork_at.tolist() == [-1, 12, -1, -1, 0]
    assert trace.cancel_after.tolist() == [-1, -1, -1, 0, -1]
    assert trace.cancel_at_us.tolist() == [-1, -1, -1, -1, 9375]
    assert (trace.session.tolist(), trace.turn.tolist()) == ([-1, -1, 0, 0, -1], [-1, -1, 0, 4, -1])
    assert trace.priority.tolist() == [0, 0, 0, -2, 0]
    assert trace.source == TraceSource("mooncake", "m", "sha256:00", "Apache-2.0")
    assert trace.filled == (Fill("cap", "cap:tokens=9", 3),)
    assert (trace.rows_read, trace.rows_added, trace.dropped) == (6, 1, {"zero_prompt": 2})


def test_local_ids_mean_something_within_a_session_only(put_rows: Callable[..., Path]) -> None:
    rows = [{**ROW, "hash_ids": [1, 2, 3], "session_id": name} for name in ("s", "t", "s")]
    local = load_trace(put_rows(*rows, header={"block_size": 4, "hash_id_scope": "local"}))

    assert local.nodes.tolist() == [0, 1, 2, 3, 4, 5, 0, 1, 2]
    assert local.hash_scope == "local"
    with pytest.raises(TraceError, match=r"ids without session_id @ line 2 \$.session_id"):
        load_trace(
            put_rows({**ROW, "hash_ids": [1, 2, 3]}, header={"block_size": 4, "hash_id_scope": "local"})
        )


def test_an_absent_tail_rule_is_the_one_that_rows_obey(put_rows: Callable[..., Path]) -> None:
    for ids, covered in (([1, 2, 3], 10), ([1, 2], 8)):
        trace = load_trace(put_rows({**ROW, "hash_ids": ids}, header={"block_size": 4}))
        assert trace.hashed_tokens.tolist() == [covered]


def test_the_block_size_that_a_header_leaves_open_is_asked_for(put_rows: Callable[..., Path]) -> None:
    path = put_rows({**ROW, "hash_ids": [1, 2, 3]}, header={})

    with pytest.raises(AmbiguousTrace, match=r"no block_size.*--trace-block-size"):
        load_trace(path)
    assert load_trace(path, trace_block_size=4).block_size == 4
    assert load_trace(put_rows(ROW, header={})).block_size == 0


@pytest.mark.parametrize(
    ("header", "rows", "message"),
    [
        ({"version": 2}, [ROW], r"version 2 @ line 1 \$.version: this kvsuite reads version 1"),
        ({"version": "1"}, [ROW], r"version 1 @ line 1"),
        ({"version": True}, [ROW], r"version True @ line 1"),
        ({"blocksize": 4}, [ROW], r"unknown key blocksize @ line 1"),
        ({"block_size": 0}, [ROW], r"0 @ line 1 \$.block_size: expected int >= 1"),
        ({"tail": "round"}, [ROW], r'"round" @ line 1 \$.tail: Invalid enum value'),
        ({"requests": 2}, [ROW], r"1 requests @ line 1 \$.requests: the header says 2"),
        (
            {"content_hash": "kvt1-00"},
            [ROW],
            r"content_hash kvt1-00 @ line 1 .*the rows hash to kvt1-[0-9a-f]{64}",
        ),
        ({}, [], "no requests"),
        ({}, [{**ROW, "foo": 1}], r"unknown key foo @ line 2 \$: the keys are request_id, timestamp"),
        ({}, [{**ROW, "input_length": 0}], r"zero input_length @ line 2 \$.input_length: expected 1 or more"),
        ({}, [{**ROW, "output_length": -3}], r"negative output_length -3 @ line 2 \$.output_length"),
        ({}, [{**ROW, "cancel_after": 7}], r"request r0 @ line 2: cancel_after must not be more"),
        ({}, [{**ROW, "cancel_after": -1}], r"-1 @ line 2 \$.cancel_after: expected int >= 0"),
        ({}, [{**ROW, "cancel_after": 1, "cancel_at": 5}], r"@ line 2: cancel_after and cancel_at exclude"),
        ({}, [{**ROW, "timestamp": 9, "cancel_at": 8}], r"cancel_at 8 before .* @ line 2 \$.cancel_at"),
        ({}, [{**ROW, "cancel_at": True}], r"true @ line 2 \$.cancel_at: expected a number"),
        ({}, [{**ROW, "max_output_length": 5}], r"request r0 @ line 2: max_output_tokens must not be less"),
        ({}, [{**ROW, "turn": 1}], r"@ line 2: a turn needs a session"),
        ({}, [{**ROW, "fork": "clone"}], r'"clone" @ line 2 \$.fork'),
        ({}, [PARENT, {**CHILD, "parent": "q"}], r"parent q is unknown @ line 3 \$.parent"),
        ({}, [CHILD, PARENT], r"parent p is not before its child @ line 2 \$.parent"),
        ({}, [PARENT, {**CHILD, "parent": "c"}], r"parent c is not before its child @ line 3"),
        ({}, [PARENT, {**CHILD, "fork": None}], r"request c @ line 3: a fork needs both parent and kind"),
        ({}, [PARENT, {**CHILD, "fork_at": None}], r"request c @ line 3: .*fork point"),
        ({}, [PARENT, {**CHILD, "fork_at": 9}], r"request c @ line 3: fork_at 9 of parent p"),
        ({}, [PARENT, {**CHILD, "input_length": 9}], r"request c @ line 3: .*equal prompts"),
        (
            {"block_size": 4},
            [PARENT, {**CHILD, "hash_ids": [1, 2, 3]}],
            r"request c @ line 3: .*its parent's",
        ),
        ({}, [PARENT, PARENT], r"request p @ line 3: its id stands twice"),
        (
            {"block_size": 4, "tail": "floor"},
            [{**ROW, "hash_ids": [1, 2, 3]}],
            r"3 ids for 10 tokens @ line 2 .*2",
        ),
        (
            {"block_size": 4},
            [{**ROW, "output_hash_ids": [1]}],
            r"1 ids for 16 tokens @ line 2 \$.output_hash_ids",
        ),
        (
            {"block_size": 4},
            [{**ROW, "hash_ids": [1, 2, 3], "output_hash_ids": [1, 5, 3, 4]}],
            r"output_hash_ids @ line 2 .*2 full blocks",
        ),
        (
            {"block_size": 4},
            [{**ROW, "hash_ids": [1, 2, 2**53]}],
            r"9007199254740992 @ line 2 \$.hash_ids\[2\]",
        ),
        ({}, [{**ROW, "timestamp": 5}, ROW], r"time goes back to 0 from 5 on line 2 @ line 3"),
    ],
)
def test_broken_files_are_refused_with_their_place(
    put_rows: Callable[..., Path], header: dict[str, Any], rows: list[dict[str, Any]], message: str
) -> None:
    with pytest.raises(TraceError, match=message):
        load_trace(put_rows(*rows, header=header))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"time_unit": "s"}, "--time-unit does not apply to canonical"),
        ({"trace_block_size": 8}, "--trace-block-size 8 contradicts block_size 4"),
        ({"tail": "floor"}, "--tail floor contradicts tail ceil"),
    ],
)
def test_options_that_contradict_the_header_are_refused(
    put_rows: Callable[..., Path], options: dict[str, Any], message: str
) -> None:
    path = put_rows({**ROW, "hash_ids": [1, 2, 3]}, header={"block_size": 4, "tail": "ceil"})

    with pytest.raises(TraceError, match=message):
        load_trace(path, **options)
    assert load_trace(path, trace_block_size=4, tail="ceil").block_size == 4


def test_a_file_without_a_header_is_not_canonical(put_rows: Callable[..., Path]) -> None:
    with pytest.raises(TraceError, match=r"no header @ line 1 \$.schema"):
        load_trace(put_rows(ROW), format="canonical")


def test_times_with_too_many_digits_are_refused(put: Callable[..., Path]) -> None:
    header = '{"schema":"kvsuite.trace","version":1}\n'
    row = '{"timestamp":%s,"input_length":1,"output_length":1}\n'

    for time in ("1e400", "1e999999999", "-1e30", "1" * 70):
        with pytest.raises(TraceError, match=r"timestamp out of range @ line [23]"):
            load_trace(put(header + row % "0" + row % time), sort=True)


@pytest.mark.parametrize(
    "pack",
    [
        pytest.param(lambda data: data, id="plain"),
        pytest.param(gzip.compress, id="gzip"),
        pytest.param(lambda data: b"\xef\xbb\xbf" + data, id="byte-order mark"),
        pytest.param(lambda data: data.replace(b"\n", b"\r\n"), id="CRLF"),
        pytest.param(lambda data: b"\n \n" + data.replace(b"\n", b"\n\n"), id="blank lines"),
        pytest.param(lambda data: data.rstrip(b"\n"), id="no last line end"),
    ],
)
def test_packaging_does_not_matter(put: Callable[..., Path], pack: Callable[[bytes], bytes]) -> None:
    rows = [{"schema": "kvsuite.trace", "version": 1, "requests": 2}, ROW, {**ROW, "timestamp": 1.5}]
    data = "".join(json.dumps(row) + "\n" for row in rows).encode()

    plain, packed = load_trace(put(data, "plain")), load_trace(put(pack(data), "packed"))

    assert content_hash(packed) == content_hash(plain)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "the file is empty"),
        (b"\n \r\n", "the file is empty"),
        (gzip.compress(b"x" * 1000, mtime=0)[:-12], "the gzip stream is cut off"),
        (b"\x1f\x8b" + b"junk" * 9, "the gzip stream is damaged"),
        (b"arrived_at,num_prefill_tokens,num_decode_tokens\n0,1,\xff\n", "byte 52 is not UTF-8"),
        (b"hello\n", "no known format starts with 'hello': known are canonical, mooncake, azure, vidur"),
        (b"[1, 2]\n", "no known format starts with"),
    ],
)
def test_files_that_are_no_trace_are_refused(put: Callable[..., Path], data: bytes, message: str) -> None:
    path = put(data)

    with pytest.raises(TraceError, match=message) as caught:
        load_trace(path)
    assert str(path) in str(caught.value)
