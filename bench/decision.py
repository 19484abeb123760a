"""How steady a decision is: calibrated anew in a process of its own each time, and decided on one trace.

    python -m bench.decision AzureLLMInferenceTrace_conv.csv

Every repeat runs `kvsuite calibrate` and `kvsuite sweep --slo` as a person would. The verdicts of the first
are printed whole, then what each shipped and how long it took. What comes after ``--`` goes to the sweep, in
place of the options below.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

from rich.console import Console
from rich.table import Table

from kvsuite.sweep.recipe import StoredDecision, read_decision

SWEEP = (
    "--overlay", "slow:times=55", "--pool", "320MiB", "--max-sequences", "64", "--max-step-tokens", "256",
    "--slo", "ttft=60s,itl=2s",
)  # fmt: skip
"""The cluster's requests 55 times as far apart: what one core can serve of an eighth of the model."""
MODEL = ("--model", "llama-3.1-8b", "--layers", "4")
KERNEL = ("--kernel", "c-plain")


@dataclass(frozen=True, slots=True)
class Repeat:
    """One calibration and one decision."""

    decision: StoredDecision
    calibrate_s: float
    sweep_s: float


def repeated(trace: Path, kernel: tuple[str, ...], sweep: tuple[str, ...], folder: Path) -> Repeat:
    """Calibrate and decide once, in processes of their own."""
    costs, out = folder / "costs.json", folder / "run"
    started_s = perf_counter()
    _kvsuite("calibrate", *MODEL, *kernel, "--out", str(costs))
    calibrated_s = perf_counter()
    _kvsuite("sweep", str(trace), *MODEL, *sweep, "--calibration", str(costs), "--fresh", "--out", str(out))
    done_s = perf_counter()
    return Repeat(read_decision(out / "decision.json"), calibrated_s - started_s, done_s - calibrated_s)


def main() -> None:
    """Print the verdicts of the first repeat, and what every repeat shipped."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("trace", type=Path)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--kernel", default=KERNEL[1])
    parser.add_argument("sweep", nargs="*", help="options of the sweep, after --")
    given = parser.parse_args()
    if not given.trace.is_file():
        raise SystemExit(f"{given.trace}: no such trace")
    console = Console(width=200, highlight=False)
    sweep = tuple(given.sweep) or SWEEP
    repeats = []
    for number in range(given.repeats):
        with tempfile.TemporaryDirectory() as folder:
            repeats.append(repeated(given.trace, ("--kernel", given.kernel), sweep, Path(folder)))
        if number == 0:
            console.print(verdicts(repeats[0].decision))
            console.print(repeats[0].decision.sentence)
    console.print(shipments(repeats))


def verdicts(decision: StoredDecision) -> Table:
    """Return option, verdict, cause and signal of one decision."""
    table = Table("option", "verdict", "cause", "observed", box=None)
    for row in decision.rows:
        tied = " (tied)" if row.option in decision.tied and row.verdict != "ship" else ""
        table.add_row(row.option, f"{row.verdict or 'none'}{tied}", row.cause or "", row.signal)
    return table


def shipments(repeats: list[Repeat]) -> Table:
    """Return what each repeat shipped, and the wall seconds it took."""
    table = Table("repeat", "ships", "tied", "calibrate, s", "sweep, s", box=None)
    for number, repeat in enumerate(repeats, 1):
        decision = repeat.decision
        table.add_row(
            str(number),
            decision.shipped or decision.result,
            ", ".join(decision.tied) or "none",
            f"{repeat.calibrate_s:.0f}",
            f"{repeat.sweep_s:.0f}",
        )
    return table


def _kvsuite(*words: str) -> None:
    command = [sys.executable, "-c", "from kvsuite.cli.main import main; main()", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    # 4 is a verdict: the SLO is unreachable.
    if done.returncode not in (0, 4):
        raise SystemExit(
            f"kvsuite {' '.join(words)} ended with {done.returncode}:\n{done.stdout}{done.stderr}"
        )


if __name__ == "__main__":
    main()
