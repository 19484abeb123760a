"""`kvsuite sweep --slo`: verdicts, the stored decision, and what a CI check hears of it."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest

from kvsuite.cli import calibrate_run
from kvsuite.device.select import device_name
from kvsuite.record.reader import read_record
from kvsuite.sweep import measure
from tests.sweep.burst_clock import burst_clock

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from kvsuite.cli.calibrate_run import CalibrateOrder
    from tests.cli.conftest import Ran

REQUESTS = 8
CLOCK = measure.clock_cell
"""As it is, where `burst_clock` does not stand in for it."""
SIZES = (1, 2, 4, 8, 16)
WORDS = ("sweep", "burst.jsonl", "--sizes", "1,2,4,8,16", "--controls", "contiguous-max", "--model", "tiny")
POOL = ("--layers", 32, "--pool", 4000 * 2048, "--max-sequences", 16, "--no-prefix-cache")
REACHED = ("--slo", "ttft=1s,itl=4ms", "--calibration", "costs.json")
ASKED = (*WORDS, *POOL, *REACHED)


@pytest.fixture(autouse=True)
def _files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """8 requests of 95 to 100 tokens at once; 1 ms a step and 10 us a table entry: see `tests.sweep`."""
    row = {"timestamp": 0, "input_length": 95, "output_length": 5}
    (tmp_path / "burst.jsonl").write_text("\n".join([json.dumps(row)] * REQUESTS), encoding="utf-8")
    costs(tmp_path)
    monkeypatch.setattr(measure, "clock_cell", burst_clock)


def costs(folder: Path, device: str | None = None, entry_us: float = 10.0) -> None:
    blocks = {str(size): {"base_us": 1000, "table_entry_us": entry_us} for size in SIZES}
    stated = {"device": device or device_name("cpu"), "kernel": "stated", "blocks": blocks}
    (folder / "costs.json").write_text(json.dumps(stated), encoding="utf-8")


def verdicts(ran: Ran) -> dict[str, tuple[str, str]]:
    """Return verdict and cause of each option from the printed table."""
    lines = ran.out.splitlines()
    start = next(k for k, line in enumerate(lines) if re.match(r"option +verdict +cause +observed", line))
    rows = [re.split(r"  +", line.strip()) for line in lines[start + 1 : start + 7]]
    return {row[0]: (row[1], row[2]) for row in rows}


def test_every_option_gets_one_verdict_and_one_cause(kvsuite: Callable[..., Ran], tmp_path: Path) -> None:
    ran = kvsuite(*ASKED, "--out", "run")
    assert ran.code == 0, ran.out + ran.err
    got = verdicts(ran)
    assert got["block 8"] == ("ship", "slack")
    assert got["block 4"][0] == "inspect (tied)"
    assert got["block 16"] == ("reject (tied)", "slack")
    assert got["block 1"] == got["block 2"] == ("inspect", "latency")
    assert got["contiguous-max"][0] == "none"
    assert "Ship block 8: 40 qualified tokens under ttft=1000ms,itl=4ms" in ran.out
    assert "No option is chosen here" not in ran.out
    assert re.search(r"^block 8 +cold ", ran.out, re.MULTILINE)
    assert re.search(r"^block 8 +steady +40 ", ran.out, re.MULTILINE)
    (line,) = read_record(tmp_path / "run" / "run.jsonl").decisions
    assert (line.result, line.shipped, line.projected) == ("ship", "block 8", False)
    assert line.tied == ["block 4", "block 8", "block 16"]
    assert line.step_rho == 1.0
    page = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert "Ship block 8" in page


def test_without_slo_nothing_is_decided(kvsuite: Callable[..., Ran], tmp_path: Path) -> None:
    ran = kvsuite(*WORDS, *POOL, "--out", "run")
    assert ran.code == 0
    assert "No option is chosen here" in ran.out
    assert read_record(tmp_path / "run" / "run.jsonl").decisions == ()
    assert not (tmp_path / "run" / "decision.json").exists()


def stored(kvsuite: Callable[..., Ran], tmp_path: Path) -> Path:
    assert kvsuite(*ASKED, "--out", "first").code == 0
    return (tmp_path / "first" / "decision.json").rename(tmp_path / "decision.json")


def test_the_same_decision_again(kvsuite: Callable[..., Ran], tmp_path: Path) -> None:
    path = stored(kvsuite, tmp_path)
    ran = kvsuite(*ASKED, "--decision", "decision.json", "--out", "second")
    assert ran.code == 0, ran.out + ran.err
    assert "against the stored decision: same" in ran.out
    assert (tmp_path / "second" / "decision.json").read_bytes() == path.read_bytes()


def test_another_size_fails(kvsuite: Callable[..., Ran], tmp_path: Path) -> None:
    """Tables cost nothing now, so that all sizes tie."""
    stored(kvsuite, tmp_path)
    costs(tmp_path, entry_us=0.0)
    ran = kvsuite(*ASKED, "--decision", "decision.json", "--out", "second")
    assert ran.code == 1
    assert "shipped size changed: from block 8 to not decided by latency" in ran.out


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("--max-sequences", 32), "scheduler.max_sequences changed from 16 to 32"),
        (("--slo", "ttft=1s,itl=5ms"), "slo.itl_us changed from 4000 to 5000"),
        (("--pool", 5000 * 2048), f"pool_bytes changed from {4000 * 2048} to {5000 * 2048}"),
        (("--limit", 7), "trace_hash changed from kvt1-"),
    ],
    ids=["scheduler", "slo", "pool", "trace"],
)
def test_a_stale_recipe_fails_and_names_what_changed(
    kvsuite: Callable[..., Ran], tmp_path: Path, words: tuple[object, ...], named: str
) -> None:
    stored(kvsuite, tmp_path)
    ran = kvsuite(*ASKED, *words, "--decision", "decision.json", "--out", "second")
    assert ran.code == 1, ran.out + ran.err
    assert f"recipe is stale: {named}" in ran.out


def test_an_unreachable_slo_exits_with_4(kvsuite: Callable[..., Ran], tmp_path: Path) -> None:
    ran = kvsuite(*ASKED, "--slo", "ttft=1us,itl=1us", "--out", "run")
    assert ran.code == 4
    assert "SLO unreachable on this device" in ran.out
    decision = json.loads((tmp_path / "run" / "decision.json").read_text())
    assert (decision["shipped"], decision["result"]) == (None, "SLO unreachable on this device")


def test_costs_of_another_device_gate_nothing(kvsuite: Callable[..., Ran], tmp_path: Path) -> None:
    stored(kvsuite, tmp_path)
    costs(tmp_path, device="another card")
    ran = kvsuite(*ASKED, "--decision", "decision.json", "--out", "second")
    assert ran.code == 0
    assert "Projected: the costs were measured on another card" in ran.out
    assert "recipe is stale: device changed from" in ran.out
    ran = kvsuite(*ASKED, "--slo", "ttft=1us,itl=1us", "--out", "third")
    assert ran.code == 0


def test_another_factor_at_one_size(kvsuite: Callable[..., Ran], tmp_path: Path) -> None:
    """Two pools, the smaller one with room for 4 of the 8 requests: it qualifies those that need not wait."""
    words = (*ASKED, "--sizes", 16, "--vary", "pool=7MiB,918000", "--slo", "ttft=4ms,itl=4ms", "--out", "run")
    ran = kvsuite(*words)
    assert ran.code == 0, ran.out + ran.err
    (line,) = read_record(tmp_path / "run" / "run.jsonl").decisions
    assert (line.factor, line.shipped) == ("pool", "pool=7MiB")
    assert line.recipe["varied"] == "pool=7MiB,918000"
    assert [row.option for row in line.rows] == ["pool=7MiB", "pool=918000"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((*WORDS, "--calibration", "costs.json"), "--calibration belongs to a decision: give --slo"),
        ((*WORDS, "--vary", "a=1,2"), "--vary belongs to a decision"),
        ((*ASKED, "--calibration", "none.json"), "cannot read the calibration"),
        ((*ASKED, "--sizes", "1,2,4,8,32"), "no costs for blocks of 32 tokens"),
        ((*ASKED, "--pool", "1MiB,2MiB"), "--slo decides on one pool, and 2 are given"),
        ((*ASKED, "--engine", "reference,reference-eager"), "--slo decides on one engine, and 2 are given"),
        ((*ASKED, "--vary", "pool=1MiB,2MiB"), "give one block size, such as --sizes 16; found 5"),
        ((*ASKED, "--sizes", 16, "--vary", "pool=1MiB"), "expected NAME=V1,V2"),
        ((*ASKED, "--sizes", 16, "--vary", "prefix-cache=1,2"), "expected true or false"),
        ((*ASKED, "--decision", "none.json"), "no stored decision"),
        ((*ASKED, "--out", "run", "--decision", "run/decision.json"), "copy it elsewhere"),
    ],
)
def test_bad_orders(kvsuite: Callable[..., Ran], words: tuple[object, ...], said: str) -> None:
    ran = kvsuite(*words)
    assert ran.code == 2
    assert said in ran.err


def test_a_declared_burst_is_borne_or_sharing_goes(kvsuite: Callable[..., Ran], tmp_path: Path) -> None:
    """8 requests at once have 8 of 16 seats, so that 8 samples can diverge; 9 are one too many."""
    shared = tuple(word for word in ASKED if word != "--no-prefix-cache")
    assert kvsuite(*shared, "--burst", 8, "--out", "first").code == 0
    first = (tmp_path / "first" / "decision.json").read_text(encoding="utf-8")
    assert json.loads(first)["with_sharing"] is True
    assert json.loads(first)["recipe"]["declared_burst"] == 8
    ran = kvsuite(*shared, "--burst", 9, "--decision", "first/decision.json", "--out", "second")
    assert ran.code == 1
    assert "recipe is stale: declared_burst changed from 8 to 9" in ran.out
    assert "Ship block 8 with sharing off: 40 qualified tokens so." in ran.out
    assert re.search(r"divergence burst +8 samples at the fullest step, bound by seats", ran.out)
    assert re.search(r"lifecycle +survived: ", ran.out)


@pytest.mark.parametrize("row", [{"output_length": 0}, {"output_length": 5, "cancel_after": 4}])
def test_a_trace_that_waits_for_no_answer_is_not_held_against_the_device(
    kvsuite: Callable[..., Ran], tmp_path: Path, row: dict[str, int]
) -> None:
    rows = [{"schema": "kvsuite.trace", "version": 1}, {"timestamp": 0, "input_length": 95, **row}]
    (tmp_path / "burst.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    ran = kvsuite(*ASKED, "--out", "run")
    assert ran.code == 2
    assert "burst: no request waits for an answer" in ran.err


def test_a_burst_belongs_to_a_decision(kvsuite: Callable[..., Ran]) -> None:
    ran = kvsuite(*WORDS, *POOL, "--burst", 4)
    assert ran.code == 2
    assert "--burst belongs to a decision: give --slo" in ran.err


@pytest.mark.parametrize(
    ("vary", "said"),
    [
        ("max-sequences=0,64", "max_sequences is 0, expected 1 or more"),
        ("prefix-cache=true,True", "'True' is none of its values"),
        ("pool-policy=reference,nobody", "unknown engine 'nobody'"),
        ("pool-policy=reference,contiguous-max", "'contiguous-max' is none of its values: expected paging"),
    ],
)
def test_values_that_a_factor_cannot_have_are_told_before_the_sweep(
    kvsuite: Callable[..., Ran], tmp_path: Path, vary: str, said: str
) -> None:
    ran = kvsuite(*WORDS, *POOL, "--sizes", 8, *REACHED, "--vary", vary, "--out", "run")
    assert ran.code in (2, 3)
    assert said in ran.err
    assert not (tmp_path / "run" / "cells").exists()


def test_pool_policies_are_engines(
    kvsuite: Callable[..., Ran], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measure, "clock_cell", CLOCK)
    ran = kvsuite(
        *WORDS,
        *POOL,
        "--sizes",
        8,
        *REACHED,
        "--vary",
        "pool-policy=reference,reference-eager",
        "--out",
        "run",
    )
    assert ran.code == 0, ran.out + ran.err
    (line,) = read_record(tmp_path / "run" / "run.jsonl").decisions
    assert [row.engine for row in line.rows] == ["reference", "reference-eager"]
    assert [sum(row.phases[1].qualified_tokens) for row in line.rows] == [3 * 40, 3 * 40]
    assert line.result == "not decided by latency"


def test_without_a_calibration_the_device_is_measured_once(
    kvsuite: Callable[..., Ran], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Costs are put where the calibration would be written, in place of a minute of timing."""
    orders = []

    def measured(order: CalibrateOrder) -> int:
        orders.append(order)
        assert order.out is not None
        order.out.parent.mkdir(exist_ok=True)
        order.out.write_bytes((tmp_path / "costs.json").read_bytes())
        return 0

    monkeypatch.setattr(calibrate_run, "run", measured)
    asked = (*WORDS, *POOL, "--slo", "ttft=1s,itl=4ms", "--out", "run")
    for _ in "ab":
        ran = kvsuite(*asked)
        assert ran.code == 0, ran.out + ran.err
        assert "Ship block 8: " in ran.out
    (order,) = orders
    assert (order.sizes, order.model, order.layout.num_layers) == (SIZES, "tiny", 32)
    assert order.out is not None
    assert order.out.name == "calibration.json"
    assert kvsuite(*asked, "--fresh").code == 0
    assert len(orders) == 2
    costs(tmp_path, device="a card elsewhere")
    (tmp_path / "run" / "calibration.json").write_bytes((tmp_path / "costs.json").read_bytes())
    costs(tmp_path)
    assert kvsuite(*asked).code == 0
    assert len(orders) == 3, "costs of another device do not stand for this one"


def test_an_engine_that_breaks_a_law_does_not_ship_and_fails_the_run(
    kvsuite: Callable[..., Ran], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """8 requests grow to 145 tokens, and 900 slots hold six of them: somebody gives way."""
    monkeypatch.setattr(measure, "clock_cell", CLOCK)
    engines = "reference,mutant:leak-on-preempt"
    row = {"timestamp": 0, "input_length": 95, "output_length": 50}
    (tmp_path / "burst.jsonl").write_text("\n".join([json.dumps(row)] * REQUESTS), encoding="utf-8")
    small = ("--layers", 32, "--pool", 900 * 2048, "--max-sequences", 16, "--no-prefix-cache", "--sizes", 8)
    ran = kvsuite(*WORDS, *small, *REACHED, "--vary", f"pool-policy={engines}", "--out", "run")
    assert ran.code == 1, ran.out + ran.err
    (line,) = read_record(tmp_path / "run" / "run.jsonl").decisions
    assert [row.verdict for row in line.rows][1] == "reject"
    assert [(row.unfit or "").startswith("breaks a law: ") for row in line.rows] == [False, True]
