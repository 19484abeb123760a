from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import msgspec
import pytest

from kvsuite.errors import RecordError
from kvsuite.record.reader import read_record
from kvsuite.record.schema import (
    SCHEMA_VERSION,
    AnyLine,
    CaseLine,
    ComparisonLine,
    ComparisonRow,
    ContentLine,
    End,
    EngineLine,
    GoldenLine,
    Header,
    LedgerLine,
    MemoryLine,
    NoteLine,
    PoolFacts,
    SweepLine,
    SweepRow,
    TraceLine,
)
from kvsuite.record.writer import RecordWriter, partial_path

if TYPE_CHECKING:
    from pathlib import Path

HEADER = Header(
    started_at="2026-01-02T03:04:05Z",
    command=["pytest"],
    kvsuite_version="0.1.0",
    python="3.11.0",
    platform="Linux",
    device="cpu",
    device_name="a CPU",
)
POOL = PoolFacts(
    key="device/g0/r0",
    num_blocks=4,
    block_size=2,
    bytes_per_token=8,
    block_bytes=16,
    pad_bytes_per_block=0,
    never_allocatable_blocks=0,
    pool_bytes=64,
    contiguous=False,
)
LEDGER = LedgerLine(
    ref="L",
    case="c",
    engine="e",
    trace="t",
    pool=POOL,
    recipe={"max_sequences": 4},
    steps_total=2,
    first_step=0,
    last_step=1,
    step_us=50_000,
    steps_per_row=1,
    columns=["payload", "free"],
    steps=[0, 1],
    rows=[[1, None], [2, 6]],
    totals={},
    peaks={"payload": 2},
    means={"payload": 1.5},
    closing_gap_bytes=None,
    final_lengths=[2],
)
CASE = CaseLine(case="c", engine="e", outcome="passed", duration_s=0.5, device="cpu")
GOLDEN = GoldenLine(case="c", engine="e", path="g.json", verdict="match")
EVERY_KIND: list[AnyLine] = [
    EngineLine(
        ref="e",
        name="reference",
        version="1",
        adapter_version=1,
        engine_hash="ab",
        capabilities=["PAGED"],
        effective={"block_size": 2, "prefix_cache": True, "policy": "lru"},
        layout="tiny",
        dtype="bfloat16",
        pools=[POOL],
    ),
    TraceLine(
        ref="t",
        content_hash="kvt1-00",
        format="synthetic",
        requests=3,
        rows_read=4,
        dropped={"zero output": 1},
        filled=[],
        prompt_tokens=9,
        output_tokens=8,
        forks=0,
        cancels=0,
    ),
    LEDGER,
    ContentLine(ledger="L", mode="probe", tokens_written=17, tokens_read=30, mismatches=0),
    MemoryLine(
        case="c",
        step=1,
        owner="suite",
        observer="smaps",
        observed_bytes=64,
        pool_bytes=64,
        tables_bytes=None,
        workspace_bytes=None,
        rounding_bytes=None,
        reserve_bytes=None,
        unattributed_bytes=0,
        unattributed_bound_bytes=4096,
        mapped_bytes=64,
        committed_bytes=32,
        expected_committed_bytes=32,
        claimed_cache_bytes=None,
    ),
    CASE,
    GOLDEN,
    ComparisonLine(
        case="c",
        trace="t",
        block_size=16,
        max_tokens=2048,
        lengths=[50, 60],
        rows=[
            ComparisonRow(
                strategy="paged",
                engine="e",
                reserved_tokens=128,
                payload_tokens=110,
                fragmentation_events=0,
                refused_admissions=0,
            )
        ],
        caveat="",
    ),
    SweepLine(
        trace="t",
        layout="tiny",
        pool_bytes=64,
        recipe={},
        rows=[SweepRow(option="b1", engine="e", block_size=1)],
    ),
    NoteLine(text="naïve \u2028 <note>", level="warning"),
]


def write(path: Path, lines: list[AnyLine]) -> Path:
    with RecordWriter(path) as writer:
        for line in lines:
            writer.write(line)
        writer.end(finished_at="2026-01-02T03:05:00Z", exit_status=0)
    return path


def test_every_kind_comes_back_as_it_was_written(tmp_path: Path) -> None:
    record = read_record(write(tmp_path / "run.jsonl", [HEADER, *EVERY_KIND]))

    back = [
        *record.engines,
        *record.traces,
        *record.ledgers,
        *record.contents,
        *record.memories,
        *record.cases,
        *record.goldens,
        *record.comparisons,
        *record.sweeps,
        *record.notes,
    ]
    assert record.header == HEADER
    assert back == EVERY_KIND
    assert not record.cut_short


def test_the_end_counts_cases_by_outcome_and_goldens_by_verdict(tmp_path: Path) -> None:
    failed = CaseLine(case="d", engine="e", outcome="failed", duration_s=0.1, device="cpu")
    record = read_record(write(tmp_path / "run.jsonl", [HEADER, CASE, failed, failed, GOLDEN]))

    assert record.end == End(
        finished_at="2026-01-02T03:05:00Z",
        exit_status=0,
        counts={"failed": 2, "passed": 1},
        verdicts={"match": 1},
    )


def test_an_exception_leaves_the_older_record_and_a_partial_one(tmp_path: Path) -> None:
    path = write(tmp_path / "run.jsonl", [HEADER])
    before = path.read_bytes()

    def stopped() -> None:
        with RecordWriter(path) as writer:
            writer.write(HEADER)
            writer.write(CASE)
            raise KeyError("stop")

    with pytest.raises(KeyError, match="stop"):
        stopped()

    assert path.read_bytes() == before
    cut = read_record(partial_path(path))
    assert cut.cut_short
    assert cut.cases == (CASE,)


def test_a_killed_process_leaves_every_flushed_line_and_no_record(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    script = f"""
import os
from pathlib import Path
from kvsuite.record.schema import Header, NoteLine
from kvsuite.record.writer import RecordWriter
with RecordWriter(Path({str(path)!r})) as writer:
    text = dict(started_at="", kvsuite_version="", python="", platform="", device="cpu", device_name="")
    writer.write(Header(command=[], **text))
    writer.write(NoteLine(text="seen"))
    os._exit(9)
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )

    assert done.returncode == 9
    assert not path.exists()
    assert [note.text for note in read_record(partial_path(path)).notes] == ["seen"]


def test_a_missing_record_names_the_partial_one(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    with pytest.raises(RecordError, match=r"no such run record$"):
        read_record(path)
    partial_path(path).write_text("{}")
    with pytest.raises(RecordError, match=r"cut short; .*run\.jsonl\.partial"):
        read_record(path)


def test_a_torn_last_line_is_the_cut_only_in_a_partial_file(tmp_path: Path) -> None:
    path = write(tmp_path / "run.jsonl", [HEADER, CASE])
    torn = path.read_bytes().splitlines(keepends=True)[:2]
    torn[1] = torn[1][:25]
    partial_path(path).write_bytes(b"".join(torn))
    path.write_bytes(b"".join(torn))

    cut = read_record(partial_path(path))
    assert cut.cut_short
    assert cut.cases == ()
    with pytest.raises(RecordError, match=r"@ line 2 \$"):
        read_record(path)


def test_a_damaged_middle_line_is_an_error_in_a_partial_file_too(tmp_path: Path) -> None:
    path = write(tmp_path / "run.jsonl", [HEADER, CASE, GOLDEN])
    lines = path.read_bytes().splitlines(keepends=True)
    lines[1] = lines[1][:25] + b"\n"
    partial_path(path).write_bytes(b"".join(lines))
    with pytest.raises(RecordError, match=r"@ line 2 \$"):
        read_record(partial_path(path))


def test_bytes_of_file_names_that_are_no_text_are_written_as_escapes(tmp_path: Path) -> None:
    broken = msgspec.structs.replace(HEADER, command=["kvsuite", "replay", os.fsdecode(b"\xffa.csv")])
    record = read_record(write(tmp_path / "run.jsonl", [broken, CASE]))
    assert record.header.command == ["kvsuite", "replay", "\\udcffa.csv"]
    assert record.cases == (CASE,)


@pytest.mark.parametrize("cut", [None, "header", "end"], ids=["whole", "without-newline", "without-end"])
def test_a_missing_end_says_cut_short(tmp_path: Path, cut: str | None) -> None:
    path = write(tmp_path / "run.jsonl", [HEADER, CASE])
    lines = path.read_bytes().splitlines(keepends=True)
    if cut == "header":
        path.write_bytes(b"".join(lines).rstrip(b"\n"))
    if cut == "end":
        path.write_bytes(b"".join(lines[:-1]))
    assert read_record(path).cut_short is (cut == "end")


@pytest.mark.parametrize("version", ["2.0", "0.9", "10.0", "x"])
def test_another_major_version_is_refused(tmp_path: Path, version: str) -> None:
    path = write(tmp_path / "run.jsonl", [HEADER])
    path.write_bytes(path.read_bytes().replace(f'"{SCHEMA_VERSION}"'.encode(), f'"{version}"'.encode(), 1))
    with pytest.raises(
        RecordError, match=rf"schema version {version} @ line 1 \$\.schema_version.*reads 1\.x"
    ):
        read_record(path)


def test_a_newer_minor_version_is_read_while_nothing_in_it_is_unknown(tmp_path: Path) -> None:
    path = write(tmp_path / "run.jsonl", [HEADER, CASE])
    newer = path.read_bytes().replace(f'"{SCHEMA_VERSION}"'.encode(), b'"1.7"', 1)
    path.write_bytes(newer)
    assert read_record(path).cases == (CASE,)

    path.write_bytes(newer.replace(b'"outcome"', b'"weather":"fine","outcome"'))
    with pytest.raises(RecordError, match=r"unknown field `weather` @ line 2 \$; .*schema 1\.7.*reads 1\.5"):
        read_record(path)


@pytest.mark.parametrize(
    ("old", "new", "place"),
    [
        (b'"num_blocks":4', b'"num_blocks":"4"', r"expected `int`, got `str` @ line 2 \$\.pool\.num_blocks"),
        (b'"num_blocks":4', b'"num_blocks":0', r"expected `int` >= 1 @ line 2 \$\.pool\.num_blocks"),
        (b'"rows":[[1,null]', b'"rows":[[1,0.5]', r"@ line 2 \$\.rows\[0\]\[1\]"),
        (b'"rows":[[1,null]', b'"rows":[[1]', r"1 values for 2 columns @ line 2 \$\.rows\[0\]"),
        (b'"steps":[0,1]', b'"steps":[0]', r"2 rows for 1 steps @ line 2 \$\.rows"),
        (b'"kind":"ledger"', b'"kind":"weather"', r"weather.*@ line 2 \$\.kind"),
        (b'"case":"c",', b"", r"missing required field `case` @ line 2 \$"),
        (b'"case":"c"', b'"case":"\xff"', r"@ line 2 \$"),
    ],
)
def test_a_damaged_line_is_named_with_its_path(tmp_path: Path, old: bytes, new: bytes, place: str) -> None:
    path = write(tmp_path / "run.jsonl", [HEADER, LEDGER])
    whole = path.read_bytes()
    assert old in whole
    path.write_bytes(whole.replace(old, new, 1))
    with pytest.raises(RecordError, match=place):
        read_record(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "empty"),
        (b"\n", "empty"),
        (b"hello\n", r"not a run record @ line 1 \$"),
        (b'{"kind":"header","schema":"other","schema_version":"1.0"}\n', r"schema 'other' @ line 1"),
        (b'{"kind":"note","schema":"kvsuite.run","schema_version":"1.0"}\n', r"kind 'note'"),
    ],
)
def test_a_file_that_is_no_record_is_refused(tmp_path: Path, text: bytes, message: str) -> None:
    path = tmp_path / "run.jsonl"
    path.write_bytes(text)
    with pytest.raises(RecordError, match=message):
        read_record(path)


def test_lines_after_the_end_and_second_headers_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "run.jsonl", [HEADER, CASE])
    header, case, end = path.read_bytes().splitlines(keepends=True)
    for lines, message in (
        ([header, end, case], r"after the end @ line 3"),
        ([header, case, header, end], r"second header @ line 3"),
        ([header, b"\n", case, end], r"@ line 2 \$"),
    ):
        path.write_bytes(b"".join(lines))
        with pytest.raises(RecordError, match=message):
            read_record(path)


END = End(finished_at="", exit_status=0, counts={}, verdicts={})


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([CASE], "before the header"),
        ([HEADER, HEADER], "second header"),
        ([HEADER, END, CASE], "CaseLine after the end"),
        ([HEADER, END, END], "End after the end"),
    ],
)
def test_the_writer_refuses_lines_out_of_order(tmp_path: Path, lines: list[AnyLine], message: str) -> None:
    path = tmp_path / "run.jsonl"
    with pytest.raises(RecordError, match=message):
        write(path, lines)
    assert not path.exists()


def test_a_writer_outside_its_block_refuses_lines(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="not open"):
        RecordWriter(tmp_path / "run.jsonl").write(HEADER)


def test_a_block_left_without_an_end_is_an_error_and_no_record(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    with pytest.raises(RecordError, match=r"no end line.*run\.jsonl\.partial"), RecordWriter(path) as writer:
        writer.write(HEADER)
    assert [entry.name for entry in tmp_path.iterdir()] == ["run.jsonl.partial"]


def test_a_partial_file_of_an_earlier_crash_does_not_stand_in_the_way(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    partial_path(path).write_bytes(b"left behind")
    assert read_record(write(path, [HEADER, CASE])).cases == (CASE,)
    assert [entry.name for entry in tmp_path.iterdir()] == ["run.jsonl"]


def test_two_runs_into_one_record_do_not_mix(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    other = CaseLine(case="other", engine="e", outcome="failed", duration_s=0.0, device="cpu")

    def overtaken() -> None:
        with RecordWriter(path) as first:
            first.write(HEADER)
            write(path, [HEADER, other])
            first.write(CASE)
            first.end(finished_at="", exit_status=0)

    with pytest.raises(RecordError, match="no longer this run's own"):
        overtaken()
    assert read_record(path).cases == (other,)


def test_a_folder_that_cannot_be_made_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "reports").write_text("a file")
    with (
        pytest.raises(RecordError, match=r"cannot write the run record \(.*another path"),
        RecordWriter(tmp_path / "reports" / "run.jsonl"),
    ):
        pass
