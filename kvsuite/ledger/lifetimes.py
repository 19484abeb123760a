"""Laws over many lifetimes: what is left behind does not pile up (I3).

slope     blocks in use with nothing running are the same after every cycle of traffic
metadata  objects of the process are as many after a hundred engines as after one
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsuite.ledger.invariants import Violation

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kvsuite.engine.snapshot import PoolSnapshot


def blocks_in_use(snapshot: PoolSnapshot, usable_blocks: int) -> int:
    """Return the blocks of a full snapshot that are neither free nor cached: live, quarantined or lost."""
    return usable_blocks - len(snapshot.free) - len(snapshot.cached)


def slope(levels: Sequence[int], pool: str) -> Iterator[Violation]:
    """Yield when blocks in use, one figure a drained cycle, are not the same at the end as at the start.

    Cached-idle blocks are not in use: after distinct prompts they do pile up, and that is no leak.
    """
    if levels and levels[-1] != levels[0]:
        grown = levels[-1] - levels[0]
        first = next(cycle for cycle, level in enumerate(levels) if level != levels[0])
        yield Violation(
            "slope",
            None,
            pool,
            f"{levels[-1]} blocks are in use after {len(levels)} drained cycles and {levels[0]} after the "
            f"first: {grown / max(1, len(levels) - 1):g} a cycle, from cycle {first} on; expected 0",
        )


def metadata(objects_before: int, objects_after: int, engines: int) -> Iterator[Violation]:
    """Yield when each of ``engines`` opened and dropped leaves an object alive (TensorRT-LLM #19242)."""
    left = objects_after - objects_before
    if left >= engines:
        message = (
            f"{left} objects are alive after {engines} engines were opened, used and dropped: "
            f"{left / engines:g} an engine, expected none"
        )
        yield Violation("metadata", None, "process", message)
