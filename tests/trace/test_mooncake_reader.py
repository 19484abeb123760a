"""Mooncake: what convinces the reader, what it refuses to guess, and which option settles it."""

from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING, Any

import pytest

from kvsuite.errors import AmbiguousTrace, TraceError
from kvsuite.trace.identity import content_hash
from kvsuite.trace.load import load_trace

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

ROWS: tuple[dict[str, Any], ...] = (
    {"timestamp": 0, "input_length": 1030, "output_length": 7, "hash_ids": [0, 1, 2]},
    {"timestamp": 0, "input_length": 1536, "output_length": 5, "hash_ids": [0, 1, 3]},
    {"timestamp": 250, "input_length": 600, "output_length": 9, "hash_ids": [0, 4]},
    {"timestamp": 900, "input_length": 1030, "output_length": 1, "hash_ids": [0, 1, 2]},
)


def rows(**keys: Any) -> list[dict[str, Any]]:
    return [{**row, **keys} for row in ROWS]


def at_block_size(size: int, tail: str) -> list[dict[str, Any]]:
    counts = [
        -(-row["input_length"] // size) if tail == "ceil" else row["input_length"] // size for row in ROWS
    ]
    return [{**row, "hash_ids": list(range(count))} for row, count in zip(ROWS, counts, strict=True)]


def test_a_published_row_is_milliseconds_512_and_ceil(put_rows: Callable[..., Path]) -> None:
    trace = load_trace(put_rows(*ROWS))

    assert trace.arrival_us.tolist() == [0, 0, 250_000, 900_000]
    assert trace.block_size == 512
    assert trace.hashed_tokens.tolist() == [1030, 1536, 600, 1030]
    # Nodes: id 0, id 1, tail 2 of 6 tokens; id 3 is full; tail 4 of 88; the last prompt is the first's.
    assert trace.nodes.tolist() == [0, 1, 2, 0, 1, 3, 0, 4, 0, 1, 2]
    assert (trace.source.format, trace.rows_read, trace.request_ids[3]) == ("mooncake", 4, "r3")


def test_another_writer_of_the_same_trace_hashes_alike(
    put: Callable[..., Path], put_rows: Callable[..., Path]
) -> None:
    other = [
        {
            "hash_ids": [raw * 7919 + 2**52 for raw in row["hash_ids"]],
            "output_length": row["output_length"],
            "timestamp": float(row["timestamp"] + 1_700_000_000_000),
            "input_length": row["input_length"],
        }
        for row in ROWS
    ]
    text = "\r\n\r\n".join(json.dumps(row) for row in other)
    path = put(gzip.compress(b"\xef\xbb\xbf" + text.encode()), "rewritten.csv")

    assert content_hash(load_trace(path)) == content_hash(load_trace(put_rows(*ROWS)))


def test_unknown_and_empty_ids_stay_apart(put_rows: Callable[..., Path]) -> None:
    unknown = {"timestamp": 1000, "input_length": 3, "output_length": 1}
    trace = load_trace(put_rows(*ROWS, unknown, {**unknown, "hash_ids": []}))

    assert trace.hashed_tokens.tolist()[-2:] == [-1, 0]


def test_a_file_without_ids_has_no_block_size_to_settle(put_rows: Callable[..., Path]) -> None:
    trace = load_trace(put_rows(*rows(hash_ids=None)))

    assert (trace.block_size, len(trace.nodes)) == (0, 0)


def test_keys_of_other_producers_are_kept_where_they_say_the_same(put_rows: Callable[..., Path]) -> None:
    extra = {"request_id": "q", "session_id": 7, "priority": 2}
    trace = load_trace(put_rows({**ROWS[0], **extra}, *ROWS[1:]))

    assert (trace.request_ids[0], trace.session[0], trace.priority[0]) == ("q", 0, 2)


def test_zero_prompts_are_dropped_and_counted(put_rows: Callable[..., Path]) -> None:
    trace = load_trace(
        put_rows(*ROWS, {"timestamp": 950, "input_length": 0, "output_length": 3, "hash_ids": []})
    )

    assert (trace.rows_read, len(trace), trace.dropped) == (5, 4, {"zero_prompt": 1})


@pytest.mark.parametrize("size", [16, 64, 1024])
def test_another_block_size_is_refused_and_settled_by_option(
    put_rows: Callable[..., Path], size: int
) -> None:
    path = put_rows(*at_block_size(size, "ceil"))

    with pytest.raises(AmbiguousTrace, match=rf"{size} \(ceil\).*implies 512.*--trace-block-size"):
        load_trace(path)
    trace = load_trace(path, trace_block_size=size)
    assert (trace.block_size, trace.hashed_tokens.tolist()) == (size, [1030, 1536, 600, 1030])


def test_floor_ids_are_refused_and_settled_by_option(put_rows: Callable[..., Path]) -> None:
    path = put_rows(*at_block_size(512, "floor"))

    with pytest.raises(AmbiguousTrace, match=r"512 \(floor\).*--tail ceil or floor"):
        load_trace(path)
    for options in ({"tail": "floor"}, {"trace_block_size": 512}):
        trace = load_trace(path, **options)
        assert trace.hashed_tokens.tolist() == [1024, 1536, 512, 1024]


def test_lengths_that_fit_several_sizes_are_refused(put_rows: Callable[..., Path]) -> None:
    short = {"timestamp": 0, "input_length": 300, "output_length": 1, "hash_ids": [1]}

    with pytest.raises(
        AmbiguousTrace, match=r"512 \(ceil\), 1024 \(ceil\).*and \d+ more.*--trace-block-size"
    ):
        load_trace(put_rows(short))
    with pytest.raises(AmbiguousTrace, match=r"256 \(floor\)"):
        load_trace(put_rows(short))
    assert load_trace(put_rows(short), trace_block_size=512, tail="ceil").hashed_tokens.tolist() == [300]
    assert load_trace(put_rows(short), trace_block_size=256).hashed_tokens.tolist() == [256]


def test_ids_that_fit_no_size_name_their_line(put_rows: Callable[..., Path]) -> None:
    wrong = {**ROWS[2], "hash_ids": [0, 4, 5]}

    for options in ({}, {"trace_block_size": 512}, {"trace_block_size": 512, "tail": "ceil"}):
        with pytest.raises(TraceError, match=r"3 ids for 600 tokens @ line 3 \$.hash_ids: expected 2 \(512"):
            load_trace(put_rows(*ROWS[:2], wrong, ROWS[3]), **options)


def test_a_given_size_that_is_wrong_names_its_line(put_rows: Callable[..., Path]) -> None:
    with pytest.raises(
        TraceError, match=r"3 ids for 1030 tokens @ line 1 \$.hash_ids: expected 65 \(16 tokens"
    ):
        load_trace(put_rows(*ROWS), trace_block_size=16)


def test_rows_of_both_rules_are_refused(put_rows: Callable[..., Path]) -> None:
    mixed = [*ROWS[:2], {**ROWS[2], "hash_ids": [0]}, ROWS[3]]

    with pytest.raises(TraceError, match=r"1 ids for 600 tokens @ line 3 \$.hash_ids: expected 2 .*ceil"):
        load_trace(put_rows(*mixed), trace_block_size=512)


def test_times_of_small_files(put_rows: Callable[..., Path]) -> None:
    at = [
        [{**row, "timestamp": start + 300 * k} for k, row in enumerate(ROWS)]
        for start in (0, 1_700_000_000_000)
    ]

    assert [load_trace(put_rows(*found)).arrival_us[-1] for found in at] == [900_000, 900_000]


@pytest.mark.parametrize(
    ("times", "message"),
    [
        ([0.0, 0.25, 0.5, 1.5], "fractions"),
        ([0, 1, 2, 3], "4 requests within 3 ms would be more than 100 a second"),
        ([1_700_000_000, 1_700_000_001, 1_700_000_002, 1_700_000_003], "epoch time in s"),
        ([1.7e15, 1.7e15 + 1e6, 1.7e15 + 2e6, 1.7e15 + 3e6], "epoch time in us"),
        ([17 * 10**17, 17 * 10**17 + 10**9, 17 * 10**17 + 2 * 10**9, 18 * 10**17], "epoch time in ns"),
        ([-5, 0, 1000, 2000], "neither near 0 nor an epoch time in ms"),
        ([0, 1000, 2000, 3_000_000_000], "neither near 0 nor an epoch time in ms"),
        (
            [0, 100_000_000, 200_000_000, 400_000_000],
            "4 requests over 400000000 ms would be less than one in 100 s",
        ),
        ([0, 1000, 2000, 1_700_000_000_000], "neither near 0 nor an epoch time in ms"),
    ],
)
def test_doubtful_times_are_refused_and_settled_by_option(
    put_rows: Callable[..., Path], times: list[float], message: str
) -> None:
    path = put_rows(*({**row, "timestamp": time} for row, time in zip(ROWS, times, strict=True)))

    with pytest.raises(AmbiguousTrace, match=f"{message}.*--time-unit s, ms, us or ns"):
        load_trace(path)
    trace = load_trace(path, time_unit="us")
    assert trace.arrival_us[-1] == round(times[-1]) - round(times[0])


def test_each_unit_by_hand(put_rows: Callable[..., Path]) -> None:
    path = put_rows({**ROWS[0], "timestamp": 0}, {**ROWS[1], "timestamp": 2500})
    expected = {"s": 2_500_000_000, "ms": 2_500_000, "us": 2500, "ns": 2}

    assert {unit: load_trace(path, time_unit=unit).arrival_us[1] for unit in expected} == expected


def test_one_batch_has_no_unit_to_doubt(put_rows: Callable[..., Path]) -> None:
    assert load_trace(put_rows(*rows(timestamp=0))).arrival_us.tolist() == [0, 0, 0, 0]


def test_block_size_in_the_rows_settles_it_but_not_the_unit(put_rows: Callable[..., Path]) -> None:
    found = [{**row, "block_size": 16, "id": k} for k, row in enumerate(at_block_size(16, "ceil"))]
    path = put_rows(*found)

    with pytest.raises(AmbiguousTrace, match=r"rows carry block_size.*--time-unit"):
        load_trace(path)
    trace = load_trace(path, time_unit="ms")
    assert (trace.block_size, trace.request_ids) == (16, ("0", "1", "2", "3"))
    with pytest.raises(
        TraceError, match=r"block_size 16 @ line 1 \$.block_size: expected 512, as --trace-block"
    ):
        load_trace(path, time_unit="ms", trace_block_size=512)
    with pytest.raises(TraceError, match=r"block_size 32 @ line 2 .*expected 16, as line 1 says"):
        load_trace(put_rows(found[0], {**found[1], "block_size": 32}), time_unit="ms")


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"output_length": -3}, r"negative output_length -3 @ line 2 \$.output_length: expected 0 or more"),
        ({"input_length": -1}, r"negative input_length -1 @ line 2 \$.input_length"),
        ({"input_length": True}, r"true @ line 2 \$.input_length: expected int"),
        ({"input_length": 1536.0}, r"1536.0 @ line 2 \$.input_length: expected int"),
        ({"input_length": "1536"}, r'"1536" @ line 2 \$.input_length: expected int'),
        ({"input_length": 10**17}, r"100000000000000000 @ line 2 \$.input_length: expected int <="),
        ({"hash_ids": [0, 1.5, 2]}, r"1.5 @ line 2 \$.hash_ids\[1\]: expected int"),
        ({"hash_ids": [0, True, 2]}, r"true @ line 2 \$.hash_ids\[1\]"),
        ({"hash_ids": [0, -1, 2]}, r"-1 @ line 2 \$.hash_ids\[1\]: expected int >= 0"),
        ({"hash_ids": [0, 2**64, 2]}, r"@ line 2 \$.hash_ids: expected at most 18446744073709551615"),
        ({"hash_ids": {"sys": [1]}}, r"@ line 2 \$.hash_ids: expected array"),
        ({"timestamp": "5"}, r'"5" @ line 2 \$.timestamp: expected a number'),
        ({"timestamp": True}, r"true @ line 2 \$.timestamp: expected a number"),
        ({"timestamp": None}, r"null @ line 2 \$.timestamp: expected a number"),
        ({"text_input": "hello"}, r"unknown key text_input @ line 2 \$"),
    ],
)
def test_broken_rows_are_refused_with_their_place(
    put_rows: Callable[..., Path], row: dict[str, Any], message: str
) -> None:
    with pytest.raises(TraceError, match=message):
        load_trace(put_rows(ROWS[0], {**ROWS[1], **row}, *ROWS[2:]))


def test_a_missing_key_is_named(put_rows: Callable[..., Path]) -> None:
    with pytest.raises(TraceError, match=r"missing key output_length @ line 2 \$"):
        load_trace(put_rows(ROWS[0], {"timestamp": 0, "input_length": 5}))


def test_times_that_go_back_are_refused_unless_sorted(put_rows: Callable[..., Path]) -> None:
    path = put_rows(ROWS[2], ROWS[0], ROWS[1], ROWS[3])

    with pytest.raises(TraceError, match=r"time goes back to 0 from 250 on line 1 @ line 2 \$.timestamp"):
        load_trace(path)
    assert content_hash(load_trace(path, sort=True)) == content_hash(load_trace(put_rows(*ROWS)))


def test_a_cut_last_line_is_not_taken_for_a_bad_one(put: Callable[..., Path]) -> None:
    whole = "".join(json.dumps(row) + "\n" for row in ROWS)

    with pytest.raises(TraceError, match="the file is cut off @ line 4"):
        load_trace(put(whole[:-30]))
    with pytest.raises(TraceError, match="line 2 is not JSON"):
        load_trace(put(whole.replace("1536,", "1536;")))
    assert len(load_trace(put(whole.rstrip("\n")))) == 4


@pytest.mark.parametrize("marker", [{"chat_id": 1, "parent_chat_id": -1}, {"schema": "other"}])
def test_rows_of_other_formats_are_not_taken_for_mooncake(
    put_rows: Callable[..., Path], marker: dict[str, Any]
) -> None:
    with pytest.raises(TraceError, match=r"no known format starts with.*canonical, mooncake, azure, vidur"):
        load_trace(put_rows({**ROWS[0], **marker}))
