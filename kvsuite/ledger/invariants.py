"""The laws of the ledger, as pure functions; pytest is not needed to ask for them.

Numbers in brackets are the usual names of these invariants in kvsuite's fault catalogue:

    partition (I1)  every block is in exactly one of live, cached, free, quarantined, never allocatable
    tables    (I1)  a table lists a block once; in a contiguous pool it is one unbroken run
    recount   (I2)  a block's reference count is the number of sequences that hold it
    drain     (I3)  when nothing runs, no block is live or quarantined
    slack     (I5)  a table holds ceil(n / b) blocks: 0 <= slack <= b - 1 + look-ahead
    content   (I7)  every slot read holds the token its sequence put there
    hits      (I8)  a prompt is found at most but for its last token
    window    (I5)  a window lets go of exactly what no settled token needs
    progress  (I9)  with nothing running, a request that fits the empty pool is admitted
    closure  (I13)  the categories add up to the pool
    lengths         sum of lengths = payload + saved by sharing + dropped by a window, and each sequence
                    is as long as it was given tokens
    changes         changes applied to the last full snapshot give the next full one
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kvsuite.errors import InvariantViolation
from kvsuite.ledger.row import ABSENT, CATEGORIES

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kvsuite.engine.snapshot import Int64Array, PoolSpec
    from kvsuite.ledger.timeline import DeviceLine, PoolTimeline, Timeline


@dataclass(frozen=True, slots=True)
class Violation:
    """One broken law: which, when, in which pool, and a sentence with ids and values."""

    invariant: str
    step: int | None
    pool: str
    message: str

    def __str__(self) -> str:
        when = "" if self.step is None else f" at step {self.step}"
        return f"{self.invariant}{when} in pool {self.pool}: {self.message}"


@dataclass(frozen=True, slots=True)
class NotJudged:
    """A law that could not be judged, and what was absent."""

    invariant: str
    pool: str
    absent: str


def tail_slack_bound(block_size: int, lookahead_tokens: int = 0) -> int:
    """Return the largest slack a live sequence may have: ``b - 1 + k``."""
    return block_size - 1 + lookahead_tokens


def slack_outside_bound(
    lengths: Int64Array, held_tokens: Int64Array, block_size: int, lookahead_tokens: int = 0
) -> Int64Array:
    """Return the positions where ``0 <= held - length <= b - 1 + k`` does not hold.

    ``held_tokens`` is what a sequence's table can hold: entries times block size.

    >>> slack_outside_bound(np.array([16, 17, 17]), np.array([32, 32, 16]), 16)
    array([0, 2])
    """
    slack = held_tokens - lengths
    return np.flatnonzero((slack < 0) | (slack > tail_slack_bound(block_size, lookahead_tokens)))


def closure(pool: PoolTimeline, steps: Int64Array) -> Iterator[Violation]:
    """Yield every step at which the categories do not add up to the pool, in bytes."""
    gaps = pool.closing_gap_bytes()
    for row in np.flatnonzero(gaps).tolist():
        parts = ", ".join(f"{name} {int(pool.category_bytes(name)[row])}" for name in CATEGORIES)
        yield Violation(
            "closure",
            int(steps[row]),
            str(pool.spec.key),
            f"{parts}, pad {pool.pad_bytes} bytes add up to {pool.spec.pool_bytes - int(gaps[row])}, "
            f"expected the pool's {pool.spec.pool_bytes}: {abs(int(gaps[row]))} bytes "
            f"{'are missing' if gaps[row] > 0 else 'stand in two categories'}",
        )


def lengths(pool: PoolTimeline, steps: Int64Array) -> Iterator[Violation]:
    """Yield every step at which the lengths are not payload + saved + dropped."""
    parts = pool.column("payload") + pool.column("sharing_saved") + pool.column("window_dropped")
    logical = pool.column("logical")
    for row in np.flatnonzero(logical != parts).tolist():
        yield Violation(
            "lengths",
            int(steps[row]),
            str(pool.spec.key),
            f"live sequences hold {int(logical[row])} tokens, but payload {int(pool.column('payload')[row])} "
            f"+ saved by sharing {int(pool.column('sharing_saved')[row])} + dropped by a window "
            f"{int(pool.column('window_dropped')[row])} = {int(parts[row])}: a table is too short",
        )


def negative(pool: PoolTimeline, steps: Int64Array) -> Iterator[Violation]:
    """Yield every category below zero: no counter is clamped, so none may go there."""
    for name in CATEGORIES:
        column = pool.column(name)
        for row in np.flatnonzero((column < 0) & (column != ABSENT)).tolist():
            yield Violation(
                "closure",
                int(steps[row]),
                str(pool.spec.key),
                f"{name} is {int(column[row])} tokens, below 0",
            )


def device_closes(line: DeviceLine) -> Iterator[Violation]:
    """Yield what does not add up in one device reading."""

    def violated(message: str) -> Violation:
        return Violation("device", line.step, line.owner, f"{line.observer}: {message}")

    parts = (
        line.pool_bytes,
        line.tables_bytes,
        line.workspace_bytes,
        line.rounding_bytes,
        line.reserve_bytes,
        line.unattributed_bytes,
    )
    known = [part for part in parts if part is not None]
    if line.observed_bytes is not None and len(known) == len(parts) and sum(known) != line.observed_bytes:
        yield violated(f"{line.observed_bytes} bytes observed, the lines add up to {sum(known)}")
    bound = line.unattributed_bound_bytes
    if line.unattributed_bytes is not None and abs(line.unattributed_bytes) > bound:
        yield violated(f"{line.unattributed_bytes} bytes belong to no line, at most {bound} may")
    committed, expected = line.committed_bytes, line.expected_committed_bytes
    if committed is not None and expected is not None and abs(committed - expected) > bound:
        yield violated(f"{committed} bytes committed, the blocks in use come to {expected}")
    claimed = line.claimed_cache_bytes
    if claimed is not None and line.pool_bytes is not None and claimed != line.pool_bytes:
        yield violated(
            f"{claimed} bytes are claimed as cache, the pool's storages hold {line.pool_bytes}: "
            "reserve, rounding and workspace are never cache"
        )


def storages_hold_pools(line: DeviceLine, pools: Sequence[PoolSpec]) -> Iterator[Violation]:
    """Yield when an engine's pool storages are not the bytes of its declared pools."""
    declared = sum(pool.pool_bytes for pool in pools)
    if line.owner == "engine" and line.pool_bytes is not None and line.pool_bytes != declared:
        yield Violation(
            "device",
            line.step,
            line.owner,
            f"the pool's storages hold {line.pool_bytes} bytes, the declared pools {declared}",
        )


def judge(timeline: Timeline) -> tuple[Violation, ...]:
    """Return every violation that rows and device readings show, in the order of steps."""
    found: list[Violation] = []
    for pool in timeline.pools:
        found += [
            *closure(pool, timeline.steps),
            *lengths(pool, timeline.steps),
            *negative(pool, timeline.steps),
        ]
    for line in timeline.device:
        found += [*device_closes(line), *storages_hold_pools(line, [pool.spec for pool in timeline.pools])]
    return tuple(sorted(found, key=lambda violation: (violation.step or 0, violation.invariant)))


def first_of_each(violations: Sequence[Violation]) -> Iterator[str]:
    """Yield the first violation of each broken law, with how many more there are."""
    for invariant in sorted({violation.invariant for violation in violations}):
        found = [violation for violation in violations if violation.invariant == invariant]
        yield f"{found[0]}{f' (+{len(found) - 1:,} more)' if len(found) > 1 else ''}"


def raise_violations(violations: Sequence[Violation], *, shown: int = 5) -> None:
    """Raise `InvariantViolation` naming the first few, if there are any."""
    if violations:
        lines = [str(violation) for violation in violations[:shown]]
        more = f"\n(+{len(violations) - shown} more)" if len(violations) > shown else ""
        raise InvariantViolation("\n".join(lines) + more)
