"""The smaller verbs: trace, engines, golden, sweep and compare."""

from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING

import pytest

from kvsuite.cli import engine_list
from kvsuite.engine.contract import Capability, EngineSpec
from kvsuite.golden.codec import Observed
from kvsuite.golden.key import Question, engine_hash
from kvsuite.golden.store import GoldenStore
from kvsuite.record.reader import read_record
from kvsuite.replay.driver import replay
from kvsuite.trace.identity import content_hash
from kvsuite.trace.synthetic import synthetic

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.cli.conftest import Ran


def test_hash_prints_the_hash_alone(kvsuite: Callable[..., Ran]) -> None:
    assert kvsuite("trace", "hash", "chat").out == f"{content_hash(synthetic('chat'))}\n"


@pytest.mark.parametrize("name", ["out.jsonl", "out.jsonl.gz"])
def test_a_converted_trace_is_the_same_trace(name: str, kvsuite: Callable[..., Ran], tmp_path: Path) -> None:
    ran = kvsuite("trace", "convert", "churn", name)
    assert ran.code == 0, ran.err
    data = (tmp_path / name).read_bytes()
    lines = (gzip.decompress(data) if name.endswith(".gz") else data).splitlines()
    assert len(lines) == 1 + len(synthetic("churn"))
    assert json.loads(lines[0])["schema"] == "kvsuite.trace"
    assert kvsuite("trace", "hash", name).out == f"{content_hash(synthetic('churn'))}\n"


def test_mooncake_is_written_only_when_its_losses_are_accepted(
    kvsuite: Callable[..., Ran], tmp_path: Path
) -> None:
    ran = kvsuite("trace", "convert", "churn", "out.jsonl", "--to", "mooncake")
    assert ran.code == 2
    assert "forks" in ran.err
    assert "--accept-losses" in ran.err
    assert not (tmp_path / "out.jsonl").exists()
    ran = kvsuite("trace", "convert", "churn", "out.jsonl", "--to", "mooncake", "--accept-losses")
    assert ran.code == 0, ran.err
    assert "cancellations" in ran.out
    assert ran.figure("hash before losses") == content_hash(synthetic("churn"))
    assert (tmp_path / "out.jsonl").exists()
    ran = kvsuite("trace", "convert", "churn", "other", "--to", "parquet")
    assert ran.code == 2
    assert "expected one of canonical, mooncake" in ran.err


def test_info_counts_what_the_workload_was_made_of(kvsuite: Callable[..., Ran]) -> None:
    trace = synthetic("churn")
    ran = kvsuite("trace", "info", "churn")
    assert ran.code == 0, ran.err
    assert ran.figure("rows read").startswith(f"{len(trace)} = {len(trace)} kept + 0 dropped")
    assert ran.figure("cancels") == str(
        sum(request.cancel_after is not None or request.cancel_at_us is not None for request in trace)
    )
    forks = sum(request.parent is not None for request in trace)
    assert sum(int(part.split()[0]) for part in ran.figure("forks").split(", ")) == forks
    assert ran.figure("caps on output") == f"{len(trace)} requests"
    assert "limit  " not in ran.out
    assert (
        kvsuite("trace", "info", "churn", "--limit", 7)
        .figure("limit")
        .startswith("the first 7 requests alone")
    )


def test_engines_lists_every_engine_and_every_definition(kvsuite: Callable[..., Ran]) -> None:
    ran = kvsuite("engines")
    assert ran.code == 0, ran.err
    for name in ("reference", "contiguous-max", "contiguous-pow2", "contiguous-exact"):
        assert f"\n{name} " in ran.out
    for capability in Capability:
        assert f"\n{capability.name} " in ran.out
        assert capability.value[:60] in ran.out


def test_an_engine_that_cannot_be_opened_is_listed_with_the_reason(
    kvsuite: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch
) -> None:
    from kvsuite.engine.registry import EngineDescription

    broken = (
        EngineDescription("acme", "acme-engine 1.0", "", error="cannot be loaded: no module acme"),
        EngineDescription("gone", "gone-engine 2.0", "not registered after all"),
    )
    monkeypatch.setattr(engine_list, "describe_engines", lambda: broken)
    ran = kvsuite("engines")
    assert ran.code == 0
    assert "cannot be loaded: no module acme" in ran.out
    assert "unknown engine 'gone'" in ran.out


@pytest.fixture
def goldens(tmp_path: Path) -> tuple[EngineSpec, EngineSpec]:
    """Record the same ledger for two versions of the reference engine; the first becomes the baseline."""
    from dataclasses import replace

    from kvsuite.cache.layout import model_layout
    from kvsuite.engine.config import EngineConfig
    from kvsuite.engine.registry import open_engine

    trace = synthetic("boundary")
    engine = open_engine("reference", EngineConfig(model_layout("tiny"), 16, 64))
    done = replay(trace, engine)
    question = Question(
        f"conformance/test_x.py::test_{'y' * 60}", "boundary", content_hash(trace), "tiny", "bfloat16", {}
    )
    old, new = done.spec, replace(done.spec, version="9.9")
    for spec in (old, new):
        GoldenStore(tmp_path / "goldens").write(Observed(spec, spec, question, done.timeline))
    return old, new


def goldens_of(folder: Path) -> list[Path]:
    return [path for path in (folder / "goldens").rglob("*.json") if path.name != "MANIFEST.json"]


def test_goldens_are_listed_and_the_baseline_moves(
    kvsuite: Callable[..., Ran], goldens: tuple[EngineSpec, EngineSpec], tmp_path: Path
) -> None:
    old, new = (engine_hash(spec)[:8] for spec in goldens)
    ran = kvsuite("golden", "list")
    assert ran.code == 0, ran.err
    assert f"{old}*" in ran.out
    assert f"{new} " in ran.out
    assert "2 goldens, 0 damaged" in ran.out
    names = [path.name for path in goldens_of(tmp_path)]
    assert len(names) == 2
    assert all(f" {name}" in ran.out for name in names)
    assert kvsuite("golden", "baseline", "reference").out.strip() == old
    assert kvsuite("golden", "baseline", "reference", new[:6]).out.strip() == f"baseline of reference: {new}"
    assert f"{new}*" in kvsuite("golden", "list", "--engine", "reference").out
    ran = kvsuite("golden", "baseline", "reference", "zzzz")
    assert ran.code == 2
    assert old in ran.err
    assert kvsuite("golden", "baseline", "reference").out.strip() == new
    ran = kvsuite("golden", "baseline", "acme")
    assert (ran.code, ran.out) == (2, "")
    assert "acme has no baseline in goldens" in ran.err


def test_a_damaged_golden_is_listed_and_ends_with_1(
    kvsuite: Callable[..., Ran], goldens: tuple[EngineSpec, EngineSpec], tmp_path: Path
) -> None:
    path = next((tmp_path / "goldens" / "reference" / engine_hash(goldens[0])[:8]).glob("*boundary*.json"))
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    ran = kvsuite("golden", "list")
    assert ran.code == 1
    assert "2 goldens, 1 damaged" in ran.out


def test_a_sweep_prints_a_row_an_option_and_chooses_none(kvsuite: Callable[..., Ran], tmp_path: Path) -> None:
    ran = kvsuite(
        "sweep", "thrash", "--sizes", "8,16,4096", "--pool", "8MiB", "--model", "tiny", "--out", "run"
    )
    assert ran.code == 0, ran.out + ran.err
    rows = {line.split("  ")[0]: line for line in ran.out.splitlines()}
    assert {"block 8", "block 16", "contiguous-max", "contiguous-pow2", "contiguous-exact"} <= rows.keys()
    assert "8388608 bytes" not in rows["block 8"]
    assert "No option is chosen here" in ran.out
    assert "hits at smaller blocks are a lower bound" in ran.out
    record = read_record(tmp_path / "run" / "run.jsonl")
    (line,) = record.sweeps
    assert [row.option for row in line.rows][:3] == ["block 8", "block 16", "block 4096"]
    assert line.pool_bytes == 8 * 2**20
    assert len(record.ledgers) == len([row for row in line.rows if row.refused is None])
    assert [engine.ref for engine in record.engines][1:4] == [
        "reference block 16",
        "reference block 4096",
        "contiguous-max",
    ]
    assert all(ledger.closing_gap_bytes == 0 for ledger in record.ledgers)
    assert any("latency" in note.text for note in record.notes)
    assert (tmp_path / "run" / "report.html").exists()


def test_the_built_in_trace_has_the_same_pool_in_every_verb(kvsuite: Callable[..., Ran]) -> None:
    ran = kvsuite("sweep", "churn", "--sizes", "256", "--controls", "contiguous-exact", "--limit", "5")
    assert ran.figure("pool").startswith("384.0 MiB, ")
    words = ("sweep", "boundary", "--sizes", "256", "--controls", "contiguous-exact", "--limit", "5")
    assert kvsuite(*words).figure("pool").startswith("20.0 GiB, ")


def test_a_size_larger_than_the_pool_is_a_row_with_its_reason(
    kvsuite: Callable[..., Ran], tmp_path: Path
) -> None:
    words = ("sweep", "boundary", "--sizes", "16,1024", "--controls", "contiguous-exact")
    ran = kvsuite(*words, "--pool", "64KiB", "--model", "tiny", "--out", "run")
    assert ran.code == 0, ran.out + ran.err
    assert ran.figure("block 1024").startswith("refused: the pool holds 0 blocks of 1024 tokens")
    rows = read_record(tmp_path / "run" / "run.jsonl").sweeps[0].rows
    assert [row.option for row in rows if row.refused] == ["block 1024"]
    assert rows[1].admitted is None


def test_a_sweep_gives_options_to_the_engine_and_none_to_a_control(
    kvsuite: Callable[..., Ran], tmp_path: Path
) -> None:
    words = ("sweep", "boundary", "--sizes", "16", "--controls", "contiguous-exact", "--pool", "2MiB")
    ran = kvsuite(*words, "--option", "null_blocks=3", "--model", "tiny", "--out", "run")
    assert ran.code == 0, ran.out + ran.err
    ledgers = read_record(tmp_path / "run" / "run.jsonl").ledgers
    assert [ledger.peaks["never_allocatable"] for ledger in ledgers] == [3 * 16, 0]


def test_a_sweep_over_a_broken_engine_ends_with_1(kvsuite: Callable[..., Ran]) -> None:
    words = ("--sizes", "16", "--controls", "contiguous-exact", "--pool", "384MiB")
    ran = kvsuite("sweep", "churn", "--engine", "mutant:free-missing", *words)
    assert ran.code == 1
    assert "block 16: VIOLATED closure" in ran.out


def test_the_handbook_comparison_prints_the_published_figures(
    kvsuite: Callable[..., Ran], tmp_path: Path
) -> None:
    ran = kvsuite("compare", "--out", "run")
    assert ran.code == 0, ran.out + ran.err
    assert ran.figure("lengths") == "min 50, max 1,051, mean 292 tokens"
    rows = {line.split("  ")[0]: line.split()[-5:] for line in ran.out.splitlines()}
    assert rows["contiguous, 2,048 reserved"][:3] == ["102,400", "14,582", "14.2%"]
    assert rows["paged, blocks of 16"][:4] == ["14,976", "14,582", "97.4%", "0"]
    assert ran.figure("memory reduction") == "85.4%"
    assert ran.figure("same memory serves") == "6.8 times the sequences"
    for control in ("contiguous, 2,048 reserved", "contiguous, power of two", "contiguous, exact length"):
        assert int(rows[control][3].replace(",", "")) > 0
    assert "Reservation was never built for dynamic lengths" in ran.out
    record = read_record(tmp_path / "run" / "run.jsonl")
    (line,) = record.comparisons
    assert {(ledger.case.rpartition("/")[0], ledger.trace) for ledger in record.ledgers} == {
        ("compare/churn", "churn")
    }
    assert (min(line.lengths), max(line.lengths), sum(line.lengths)) == (50, 1051, 14582)
