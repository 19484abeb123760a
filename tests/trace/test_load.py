"""Names and paths, and the figures of a trace."""

from __future__ import annotations

import gzip
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from kvsuite.errors import AmbiguousTrace, TraceError
from kvsuite.trace.load import LengthSummary, load_trace, summarize
from kvsuite.trace.model import TraceSource
from kvsuite.trace.readers import source
from kvsuite.trace.readers.registry import READERS, detect, format_names, reader_named
from kvsuite.trace.readers.source import Reader, open_trace_file
from kvsuite.trace.rows import Row, trace_of
from kvsuite.trace.synthetic import workload_names

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

VIDUR = "arrived_at,num_prefill_tokens,num_decode_tokens\n0,5,1\n1,6,1\n2,7,1\n"


def test_a_name_is_a_workload_and_a_path_a_file(
    put: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = put(VIDUR, "churn")
    monkeypatch.chdir(path.parent)

    assert load_trace("churn").source.format == "synthetic"
    assert load_trace("./churn").source.format == "vidur"
    assert load_trace(path).source.name == "churn"


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(
        TraceError, match="chrun is neither a file nor a synthetic workload: the workloads are"
    ) as caught:
        load_trace("chrun")
    assert all(name in str(caught.value) for name in workload_names())


def test_a_folder_is_not_a_trace(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"cannot read .*directory"):
        load_trace(tmp_path)


CANONICAL = b'{"schema":"kvsuite.trace","version":1}\n'
ROW = b'{"timestamp":0,"input_length":1,"output_length":1}\n'
NOT_EVEN_TEXT: dict[str, tuple[bytes, str]] = {
    "utf-16": (VIDUR.encode("utf-16"), "UTF-16 or UTF-32 text; write it as UTF-8"),
    "utf-32": (VIDUR.encode("utf-32"), "UTF-16 or UTF-32 text; write it as UTF-8"),
    "CR alone": (VIDUR.replace("\n", "\r").encode(), "no known format starts with 'arrived_at"),
    "deep": (b"[" * 200_000, r"no known format starts with '\[\[\["),
    "deep row": (
        CANONICAL + ROW[:-2] + b',"obs":' + b"[" * 10**5 + b"]" * 10**5 + b"}\n",
        "line 2 .*too deep",
    ),
    "exponent": (
        CANONICAL + ROW + ROW.replace(b":0", b":1e" + b"9" * 20),
        "line 3 .* number is out of range",
    ),
    "digits": (CANONICAL + ROW.replace(b":0", b":" + b"9" * 10**5), "line 2 is not JSON .*out of range"),
    "key twice": (
        CANONICAL + ROW[:-2] + b',"timestamp":4}\n',
        "key timestamp stands 2 times @ line 2: keep one",
    ),
    "header key twice": (CANONICAL[:-2] + b',"version":1}\n' + ROW, "key version stands 2 times @ line 1"),
}


@pytest.mark.parametrize("name", NOT_EVEN_TEXT)
def test_what_no_decoder_takes_is_refused_with_its_place(name: str, put: Callable[..., Path]) -> None:
    content, says = NOT_EVEN_TEXT[name]
    path = put(content)
    with pytest.raises(TraceError, match=says) as caught:
        load_trace(path)
    assert str(path) in str(caught.value)


def test_a_value_that_reads_like_a_key_is_no_second_key(put: Callable[..., Path]) -> None:
    path = put(CANONICAL + ROW[:-2] + b',"request_id":"timestamp","obs":{"timestamp":5}}\n')
    assert load_trace(path).request_ids == ("timestamp",)


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gzip"])
def test_more_text_than_a_trace_may_hold_is_refused(
    packed: bool, put: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten thousand equal rows compress to a few hundred bytes."""
    monkeypatch.setattr(source, "MAX_TRACE_BYTES", 100_000)
    text = CANONICAL + ROW * 10_000
    path = put(gzip.compress(text) if packed else text)
    with pytest.raises(
        TraceError, match="more than 100000 bytes of text; cut it into files of fewer requests"
    ):
        load_trace(path)


UNPRIVILEGED = """
import os, sys
from kvsuite.errors import TraceError
from kvsuite.trace.load import load_trace
if os.geteuid() == 0:
    os.setuid(65534)
try:
    load_trace(sys.argv[1])
except TraceError as error:
    print(error)
"""


def test_a_file_that_may_not_be_read_is_named(put: Callable[..., Path]) -> None:
    path = put(VIDUR)
    path.chmod(0)
    found = subprocess.run(
        [sys.executable, "-c", UNPRIVILEGED, str(path)], capture_output=True, text=True, check=True
    )

    assert found.stdout.startswith(f"cannot read {path}: Permission denied; give a trace file")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"format": "csv"}, "unknown format csv: expected one of canonical, mooncake, azure, vidur"),
        ({"time_unit": "m"}, "unknown --time-unit m: expected s, ms, us, ns"),
        ({"tail": "up"}, "unknown --tail up: expected ceil, floor"),
        ({"trace_block_size": 0}, "--trace-block-size 0: expected 1 token or more"),
        ({"limit": 0}, "--limit 0: expected 1 request or more"),
        ({"format": "mooncake"}, "line 1 is not JSON"),
    ],
)
def test_bad_options_are_refused(put: Callable[..., Path], options: dict[str, Any], message: str) -> None:
    with pytest.raises(TraceError, match=message):
        load_trace(put(VIDUR), **options)


@pytest.mark.parametrize("option", [{"format": "canonical"}, {"tail": "ceil"}, {"time_unit": "s"}])
def test_a_workload_takes_no_option_of_a_file(option: dict[str, Any]) -> None:
    with pytest.raises(TraceError, match="chat is a synthetic workload"):
        load_trace("chat", **option)


def test_limit_keeps_the_first_requests(put: Callable[..., Path]) -> None:
    assert load_trace(put(VIDUR), limit=2).prompt_tokens.tolist() == [5, 6]
    assert len(load_trace("chat", limit=7)) == 7
    with pytest.raises(TraceError, match="line 4"):
        load_trace(put(VIDUR.replace("7,1", "7,x")), limit=1)


def test_a_file_that_two_readers_know_is_ambiguous(
    put: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    vidur = reader_named("vidur")
    twin = Reader("twin", "another reader of the same files", vidur.recognises, vidur.read)
    monkeypatch.setattr("kvsuite.trace.readers.registry.READERS", (*READERS, twin))

    with pytest.raises(AmbiguousTrace, match="can be read as vidur, twin: give --format"):
        detect(open_trace_file(put(VIDUR)))
    assert load_trace(put(VIDUR), format="twin").source.format == "vidur"


def test_every_reader_has_a_name_of_its_own() -> None:
    assert format_names() == ("canonical", "mooncake", "azure", "vidur")
    assert all(reader.description for reader in READERS)


def test_the_digest_is_of_the_file_on_disk(put: Callable[..., Path]) -> None:
    # printf 'arrived_at,num_prefill_tokens,num_decode_tokens\n0,5,1\n' | sha256sum
    trace = load_trace(put(VIDUR[:54]))

    assert trace.source == TraceSource(
        "vidur", "trace.txt", "sha256:506496bcda3bdf5b8725278487da58190e9d9da5ad0a92040a170df77fe9c8c0"
    )


def test_figures_by_hand() -> None:
    rows = [
        Row(
            request_id="a",
            timestamp=0,
            input_length=10,
            output_length=6,
            output_hash_ids=[1, 2, 3, 4],
            session_id="s",
        ),
        Row(timestamp=5, input_length=10, output_length=1, hash_ids=[1, 2, 9], max_output_length=4),
        Row(
            timestamp=5,
            input_length=20,
            output_length=2,
            hash_ids=[1, 2, 3, 4, 5],
            session_id="s",
            cancel_at=9,
        ),
        Row(timestamp=6, input_length=10, output_length=3, hash_ids=[1, 2, 9], cancel_after=1),
        Row(timestamp=7, input_length=10, output_length=6, parent="a", fork="sample", fork_at=10),
        Row(timestamp=8, input_length=50, output_length=0),
    ]
    summary = summarize(trace_of(rows, TraceSource("test", "t", license="CC"), block_size=4))

    assert summary.prompt == LengthSummary(110, 10, 10, 50, 50, 50)
    assert summary.output == LengthSummary(18, 0, 2, 6, 6, 6)
    assert (summary.requests, summary.rows_read, summary.duration_us) == (6, 6, 8000)
    # Looked up: 10 + 10 + 20 + 10, not the child, not the last, of which nothing is known.
    assert summary.looked_up_tokens == 50
    # Two full blocks; all 16 tokens of the finished first request; the second prompt again, its tail with it.
    assert summary.hit_tokens == 0 + 8 + 16 + 10
    assert summary.hit_share == pytest.approx(34 / 50)
    assert summary.prefix_nodes == 6
    assert (summary.sessions, summary.cancels, summary.capped) == (1, 2, 1)
    assert summary.forks == {"sample": 1}
    assert (summary.format, summary.name, summary.license, summary.block_size) == ("test", "t", "CC", 4)


def test_hits_end_with_the_prompt() -> None:
    row = Row(timestamp=0, input_length=6, output_length=6, output_hash_ids=[1, 2, 3])
    trace = trace_of([row, row], TraceSource("test", "t"), block_size=4)

    # The second request knows all 12 tokens of the first, and looks up the 6 of its prompt.
    assert summarize(trace).hit_tokens == 6


def test_a_trace_without_hashes_has_no_hit_share(put: Callable[..., Path]) -> None:
    assert summarize(load_trace(put(VIDUR))).hit_share is None


@pytest.mark.parametrize(("count", "ranks"), [(1, (1, 1, 1)), (10, (5, 9, 10)), (200, (100, 180, 198))])
def test_percentiles_are_nearest_rank(count: int, ranks: tuple[int, int, int]) -> None:
    rows = [Row(timestamp=0, input_length=n, output_length=0) for n in range(count, 0, -1)]
    prompt = summarize(trace_of(rows, TraceSource("test", "t"), block_size=0)).prompt

    assert (prompt.p50, prompt.p90, prompt.p99) == ranks
