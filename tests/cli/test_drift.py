"""`kvsuite drift`: names and versions, exit codes, tables, the record."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kvsuite.cli.drift_run import between
from kvsuite.engine import registry
from kvsuite.errors import ConfigError, EnvironmentUnavailable
from kvsuite.record.reader import read_record

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from kvsuite.engine.config import EngineConfig
    from kvsuite.engine.contract import Engine
    from kvsuite.record.schema import DriftLine
    from tests.cli.conftest import Ran

    Run = Callable[..., Ran]

SMALL = ("--trace", "boundary", "--model", "tiny", "--pool", "40 blocks")
VERSIONS = {
    "1.9": "reference",
    "1.10": "mutant:free-list-fifo",
    "2.0": "mutant:free-list-fifo",
    "2.1": "mutant:surplus-at-boundary",
    "2.2": "reference",
}
"""Versions of an engine that exists here only, and what each of them really is; 2.0 cannot be had."""


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the names stub@1.9, stub@1.10, ... be opened, and the package index list them."""
    known = registry.open_any_engine

    def opened(name: str, config: EngineConfig) -> Engine:
        engine, at, version = name.partition("@")
        if engine == "stub" and at and version == "2.0":
            raise EnvironmentUnavailable("stub 2.0: its build failed")
        if engine == "stub" and at and version not in VERSIONS:
            raise EnvironmentUnavailable(f"stub {version}: no such version")
        return known(VERSIONS[version] if engine == "stub" else name, config)  # type: ignore[return-value]

    monkeypatch.setattr(registry, "open_any_engine", opened)
    monkeypatch.setattr("kvsuite.engine.environments.released", lambda name: tuple(VERSIONS))


def chain(path: Path) -> DriftLine:
    (line,) = read_record(path / "run.jsonl").drifts
    return line


def test_two_engines_that_differ_in_footprint_alone(kvsuite: Run, tmp_path: Path) -> None:
    ran = kvsuite("drift", "reference", "mutant:free-list-fifo", *SMALL, "--out", "out")

    assert ran.code == 0, ran.err
    assert "footprint: reference -> mutant:free-list-fifo: from step " in ran.out
    assert "different blocks touched, another order" in ran.figure("footprint")
    assert ran.figure("equal").startswith("payload, slack, ")
    assert (tmp_path / "out" / "report.html").exists()
    assert [row.verdict for row in chain(tmp_path / "out").rows] == [None, "footprint"]


def test_counts_that_differ_are_exit_code_1(kvsuite: Run) -> None:
    ran = kvsuite("drift", "reference", "mutant:surplus-at-boundary", *SMALL)

    # One request a step: prompts of 1 token with answers of 0, 1, 15, 16 and 17, then prompts of 15 with the
    # same. The first to fill a block of 16 is the seventh: 15 tokens at step 6 and one more at step 7.
    assert ran.code == 1, ran.err
    assert "drift: reference -> mutant:surplus-at-boundary: step 7, over_reserved: 0 -> 16" in ran.out
    assert ran.figure("broken now").startswith("slack, ")


def test_one_engine_from_version_to_version(kvsuite: Run, stub: None, tmp_path: Path) -> None:
    ran = kvsuite("drift", "stub", "--from", "1.9", "--to", "2.2", *SMALL, "--out", "out")

    assert ran.code == 0, ran.err
    assert "equal: stub@1.9 -> stub@2.2" in ran.out
    assert [row.engine for row in chain(tmp_path / "out").rows] == ["stub@1.9", "stub@2.2"]


def test_every_version_between_two(kvsuite: Run, stub: None, tmp_path: Path) -> None:
    ran = kvsuite("drift", "stub", "--from", "1.10", "--to", "newest", "--all", *SMALL, "--out", "out")

    assert ran.code == 1, ran.err
    said = [line.split()[:3] for line in ran.out.splitlines() if line.startswith("stub@")]
    assert said == [
        ["stub@1.10"],
        ["stub@2.0", "-", "-"],
        ["stub@2.1", "changed", "changed"],
        ["stub@2.2", "changed", "changed"],
    ]
    assert "did not run: stub 2.0: its build failed" in ran.out
    rows = chain(tmp_path / "out").rows
    assert [row.against for row in rows] == [None, None, "stub@1.10", "stub@2.1"]
    kept = read_record(tmp_path / "out" / "run.jsonl").ledgers
    assert {line.engine for line in kept} == {"stub@1.10", "stub@2.1", "stub@2.2"}
    assert all(len(line.steps) <= 256 for line in kept)


def test_a_version_that_cannot_be_had_is_exit_code_3(kvsuite: Run, stub: None, tmp_path: Path) -> None:
    ran = kvsuite("drift", "stub", "--from", "1.10", "--to", "2.0", *SMALL, "--out", "out")
    assert (ran.code, "its build failed" in ran.err) == (3, True)
    ran = kvsuite("drift", "stub", "--from", "1.10", "--to", "2.0", "--all", *SMALL, "--out", "out")
    assert (ran.code, "its build failed" in ran.err) == (3, True)
    assert not (tmp_path / "out").exists()


def test_several_traces_are_several_comparisons(kvsuite: Run, tmp_path: Path) -> None:
    more = ("--trace", "cancel-burst", "--trace", "boundary", "--out", "out", "--pool", "2000 blocks")
    ran = kvsuite("drift", "reference", "mutant:free-list-fifo", *SMALL, *more)

    assert ran.code == 0, ran.err
    record = read_record(tmp_path / "out" / "run.jsonl")
    assert [line.trace for line in record.drifts] == ["boundary", "cancel-burst", "boundary #2"]
    assert sorted(line.ref for line in record.engines) == ["mutant:free-list-fifo", "reference"]
    assert len({line.ref for line in record.ledgers}) == 6


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["reference"], "give two or more different engines"),
        (["reference", "reference"], "give two or more different engines"),
        (["a", "b", "--from", "1", "--to", "2"], "one engine without a version"),
        (["a@1", "--from", "1", "--to", "2"], "one engine without a version"),
        (["a", "--from", "1"], "give both"),
        (["a", "b", "--all"], "--all walks the versions of one engine"),
        (["stub", "--from", "1.8", "--to", "2.1", "--all"], "stub 1.8 is not on the package index"),
        (["stub", "--from", "2.1", "--to", "1.9", "--all"], "stub 2.1 is not older than 1.9"),
        (["reference", "refrence"], "unknown engine 'refrence'"),
    ],
)
def test_bad_input_is_exit_code_2(
    words: list[str], said: str, kvsuite: Run, stub: None, tmp_path: Path
) -> None:
    ran = kvsuite("drift", *words, *SMALL)

    assert (ran.code, said in ran.err) == (2, True), ran.err
    assert not (tmp_path / "reports").exists()


def test_a_walk_takes_versions_in_the_order_of_the_index() -> None:
    assert between(tuple(VERSIONS), "1.9", "2.0", "stub") == ("1.9", "1.10", "2.0")
    assert between(tuple(VERSIONS), "2.1", "newest", "stub") == ("2.1", "2.2")
    with pytest.raises(ConfigError, match=r"expected one of 1\.9, 1\.10, 2\.0"):
        between(tuple(VERSIONS), "1.9", "3", "stub")
