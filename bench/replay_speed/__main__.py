"""How fast a trace is replayed: driver and compiled core beside other programs, and from small to large.

    KVSUITE_TRACES=FOLDER python -m bench.replay_speed --simulator PYTHON

from the root of a checkout. Prints tables in Markdown, medians of ``--runs`` CPU seconds taken in turn, and
stops where two ledgers that should be equal are not. ``--quick`` runs every part at a small size.

    beside-vllm   the three on Azure, without what vLLM's block manager has not
    features      driver and compiled core, every feature on
    growth        compiled core, 10,000 to a million requests
    sizes         compiled core, a million Azure requests in blocks of 1 to 256, on two threads
    mooncake      compiled core, a million Mooncake requests in blocks of 16 to 512, on two threads
    lookup        the look-up of prefixes alone beside kvcache-simulator

vLLM runs in the environment of ``vllm@0.33.0``, which is built where it is missing. For the last part name an
interpreter that has ``kvcache-simulator`` with ``--simulator``.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bench.replay_speed import beside_vllm, lookup, scaling
from bench.replay_speed.timing import copy_bytes_per_s, machine

if TYPE_CHECKING:
    from collections.abc import Callable

SMALL_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
LARGE_SIZES = (16, 32, 64, 128, 256, 512)


@dataclass(frozen=True, slots=True)
class Scale:
    """How much is run. A million requests are Azure's 19,366 rows 52 times, or Mooncake's 12,031 84 times."""

    head: int
    """Requests beside other programs, and in one copy of the growing trace."""
    growth: tuple[int, ...]
    whole: int | None
    """Requests in one copy of the swept traces; ``None``: all."""
    azure_copies: int
    mooncake_copies: int
    budgets: tuple[int, ...]


FULL = Scale(10_000, (1, 10, 100), None, 52, 84, lookup.BUDGETS_BLOCKS)
QUICK = Scale(1_000, (1, 3), 1_000, 2, 2, (10_000,))


def parts(scale: Scale, runs: int, simulator: Path | None) -> dict[str, Callable[[], str]]:
    """Return what there is to run, by name."""
    return {
        "beside-vllm": lambda: beside_vllm.with_vllm(scale.head, 16, runs),
        "features": lambda: beside_vllm.with_everything(scale.head, 16, runs),
        "growth": lambda: scaling.growth(scale.growth, scale.head, runs),
        "sizes": lambda: scaling.sweep("azure", scale.whole, scale.azure_copies, SMALL_SIZES, 1),
        "mooncake": lambda: scaling.sweep("mooncake", scale.whole, scale.mooncake_copies, LARGE_SIZES, 1),
        "lookup": lambda: lookup.against_the_simulator(simulator, scale.budgets, runs),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.replay_speed",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--quick", action="store_true", help="a thousand requests, and a few copies")
    parser.add_argument("--only", action="append", metavar="PART", help="one part; may be given again")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--simulator", type=Path, help="an interpreter that has kvcache-simulator")
    asked = parser.parse_args()
    every = parts(QUICK if asked.quick else FULL, asked.runs, asked.simulator)
    unknown = sorted(set(asked.only or ()) - set(every))
    if unknown:
        parser.error(f"no part {unknown[0]!r}: expected {', '.join(every)}")
    print(f"{machine()}; a plain copy moves {copy_bytes_per_s() / 1e9:.1f} GB/s, read and written")
    for name in asked.only or every:
        print(f"\n## {name}\n\n{every[name]()}", flush=True)


if __name__ == "__main__":
    main()
