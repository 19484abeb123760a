"""Azure and vidur: small files with numbers of our own, and a broken twin for every refusal."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kvsuite.errors import AmbiguousTrace, TraceError
from kvsuite.trace.identity import content_hash
from kvsuite.trace.load import load_trace

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

AZURE = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
    "2030-01-02 23:59:59.9999990,17,3\r\n"
    "2030-01-03 00:00:00.0000005,40,8\r\n"
    "2030-01-03 00:00:00.2500015,9,0"
)
VIDUR = (
    "arrived_at,num_prefill_tokens,num_decode_tokens\n"
    "0.0,17,3\n"
    "0.000001499999999,40,8\n"
    "0.25000250000000001,9,0\n"
)


def test_azure_times_are_exact_to_the_microsecond_half_to_even(put: Callable[..., Path]) -> None:
    trace = load_trace(put(AZURE))

    # 1.5 us rounds to 2, 250002.5 us to 250002; CRLF, 7 digits and no last line end, as published.
    assert trace.arrival_us.tolist() == [0, 2, 250_002]
    assert trace.prompt_tokens.tolist() == [17, 40, 9]
    assert trace.output_tokens.tolist() == [3, 8, 0]
    assert (trace.source.format, trace.block_size, trace.rows_read) == ("azure", 0, 3)
    assert trace.hashed_tokens.tolist() == [-1, -1, -1]


def test_vidur_seconds_are_read_as_decimal_text(put: Callable[..., Path]) -> None:
    trace = load_trace(put(VIDUR))

    # 1.499.. us rounds to 1, 250002.50000000001 us to 250003.
    assert trace.arrival_us.tolist() == [0, 1, 250_003]
    assert (trace.source.format, trace.prompt_tokens.tolist()) == ("vidur", [17, 40, 9])


def test_the_same_lifecycle_in_both_formats_hashes_alike(put: Callable[..., Path]) -> None:
    azure = AZURE.replace("00.0000005", "00.1000000").replace(".2500015", ".3500001")
    vidur = VIDUR.replace("0.000001499999999", "0.100001").replace(
        "0.25000250000000001", "0.35000109999999999"
    )

    assert content_hash(load_trace(put(azure, "a"))) == content_hash(load_trace(put(vidur, "v")))


def test_columns_are_found_by_name(put: Callable[..., Path]) -> None:
    azure = put("GeneratedTokens,TIMESTAMP,NumImages,ContextTokens\n3,2030-01-02T03:04:05Z,2,17\n", "a")
    vidur = put("num_decode_tokens,arrived_at,num_prefill_tokens\n3,5,17\n", "v")

    for path in (azure, vidur):
        trace = load_trace(path)
        assert (trace.prompt_tokens.tolist(), trace.output_tokens.tolist()) == ([17], [3])


def test_stamps_with_zones_and_without_fractions(put: Callable[..., Path]) -> None:
    trace = load_trace(
        put(
            "TIMESTAMP,ContextTokens,GeneratedTokens\n"
            "2030-01-02 03:04:05+00:00,17,3\n"
            "2030-01-02 04:04:05.25+01:00,1,1\n"
            "2030-01-01 22:04:06-0500,1,1\n"
        )
    )

    assert trace.arrival_us.tolist() == [0, 250_000, 1_000_000]


@pytest.mark.parametrize(
    ("table", "zeros"),
    [
        (AZURE.replace(",40,", ",0,"), 1),
        (VIDUR.replace(",40,", ",0,").replace(",17,", ",0,"), 2),
    ],
)
def test_rows_without_a_prompt_are_dropped_and_counted(
    put: Callable[..., Path], table: str, zeros: int
) -> None:
    trace = load_trace(put(table))

    assert trace.dropped == {"zero_prompt": zeros}
    assert trace.rows_read == 3 == len(trace) + zeros
    assert trace.arrival_us[0] == 0


def test_sort_keeps_file_order_on_ties(put: Callable[..., Path]) -> None:
    path = put("arrived_at,num_prefill_tokens,num_decode_tokens\n2,1,1\n1,2,1\n2,3,1\n1,4,1\n")

    with pytest.raises(
        TraceError, match=r"time goes back to 1 from 2 on line 2 @ line 3 column arrived_at.*--sort"
    ):
        load_trace(path)
    assert load_trace(path, sort=True).prompt_tokens.tolist() == [2, 4, 1, 3]
    assert load_trace(path, sort=True).arrival_us.tolist() == [0, 0, 1_000_000, 1_000_000]


def test_sort_is_stable_over_many_ties(put: Callable[..., Path]) -> None:
    rows = "".join(f"{k * 7 % 3},{k + 1},1\n" for k in range(300))
    trace = load_trace(put("arrived_at,num_prefill_tokens,num_decode_tokens\n" + rows), sort=True)

    batches = [trace.prompt_tokens[trace.arrival_us == second * 1_000_000].tolist() for second in range(3)]
    assert batches == [[k + 1 for k in range(300) if k * 7 % 3 == second] for second in range(3)]


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (
            AZURE.replace(",40,", ",-40,"),
            r"negative ContextTokens -40 @ line 3 column ContextTokens: expected 0",
        ),
        (AZURE.replace(",40,8", ",40,-8"), r"negative GeneratedTokens -8 @ line 3"),
        (AZURE.replace(",40,", ",40.0,"), r"'40.0' @ line 3 column ContextTokens: expected a whole number"),
        (AZURE.replace(",40,", ",,"), r"'' @ line 3 column ContextTokens"),
        (AZURE.replace(",40,", ",1_0,"), r"'1_0' @ line 3"),
        (AZURE.replace(",40,", ",\u0664,"), r"@ line 3 column ContextTokens: expected a whole number"),
        (AZURE.replace(",40,8", ",40"), r"2 cells @ line 3: expected 3 .TIMESTAMP, ContextTokens"),
        (AZURE.removesuffix(",0"), r"the file is cut off @ line 4"),
        (AZURE.replace("01-03 00:00:00.0000005", "02-30 00:00:00"), r"no such date or time"),
        (
            AZURE.replace("2030-01-03 00:00:00.0000005", "5.5"),
            r"'5.5' @ line 3 column TIMESTAMP: expected a stamp",
        ),
        (AZURE.replace("0000005,40", "0000005Z,40"), r"with and without a time zone are mixed"),
        (AZURE.replace("GeneratedTokens", "Output"), r"missing column|no known format"),
        (AZURE.replace("TIMESTAMP,", "TIMESTAMP,User,"), r"unknown column User @ line 1"),
        (AZURE.replace("TIMESTAMP,", "TIMESTAMP,ContextTokens,"), r"repeated column ContextTokens @ line 1"),
        (AZURE.split("\r\n")[0], r"no requests: 0 rows read"),
        (
            VIDUR.replace("0.25000250000000001", "soon"),
            r"'soon' @ line 4 column arrived_at: expected seconds",
        ),
        (VIDUR.replace("0.25000250000000001", "nan"), r"'nan' @ line 4"),
        (VIDUR.replace("0.25000250000000001", "1e30"), r"arrived_at out of range @ line 4"),
        (VIDUR.replace("0.0,17", '"0.0,17'), r"line \d+ is not CSV"),
        (
            "num_prefill_tokens,num_decode_tokens,num_total_tokens,pd_ratio\n4,8,12,0.5\n",
            r"lengths only.*arrived_at",
        ),
    ],
)
def test_broken_tables_are_refused_with_their_place(
    put: Callable[..., Path], table: str, message: str
) -> None:
    path = put(table)
    with pytest.raises(TraceError, match=message) as caught:
        load_trace(path)

    assert str(path) in str(caught.value)


def test_a_format_asked_for_says_which_column_is_missing(put: Callable[..., Path]) -> None:
    with pytest.raises(
        TraceError, match="missing column GeneratedTokens @ line 1: found TIMESTAMP, ContextTokens"
    ):
        load_trace(put("TIMESTAMP,ContextTokens\n"), format="azure")


@pytest.mark.parametrize("table", [AZURE, VIDUR])
@pytest.mark.parametrize("option", [{"time_unit": "ms"}, {"trace_block_size": 16}, {"tail": "ceil"}])
def test_options_that_the_format_settles_are_refused(
    put: Callable[..., Path], table: str, option: dict[str, str]
) -> None:
    with pytest.raises(TraceError, match=r"does not apply to (azure|vidur)"):
        load_trace(put(table), **option)  # type: ignore[arg-type]


def test_these_refusals_are_not_ambiguities(put: Callable[..., Path]) -> None:
    with pytest.raises(TraceError) as caught:
        load_trace(put(AZURE.replace(",40,", ",-40,")))

    assert not isinstance(caught.value, AmbiguousTrace)
