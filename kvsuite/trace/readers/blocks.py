"""Which block size and tail rule a file's prefix ids follow, decided from how many ids each length has.

``n`` ids for ``p`` tokens fit block size ``b``

    ceil   when (n - 1) b < p <= n b         the last id stands for a partial block
    floor  when n b <= p < (n + 1) b         a partial block has no id

so each row leaves an interval of sizes under each rule, and a file leaves the meet of its rows'.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kvsuite.errors import AmbiguousTrace, TraceError
from kvsuite.trace.rows import TAILS

if TYPE_CHECKING:
    from kvsuite.trace.parsed import Labels
    from kvsuite.trace.rows import Tail
    from kvsuite.trace.tokens import Int64Array

_LARGEST = 2**20
"""Sizes beyond this many tokens are not thought of."""


@dataclass(frozen=True, slots=True)
class IdCounts:
    """How many prefix ids each length has; lists that are empty or unknown are left out."""

    labels: Labels
    name: str
    """Key of the ids in the file."""
    lines: Int64Array
    tokens: Int64Array
    ids: Int64Array

    @classmethod
    def of(
        cls,
        labels: Labels,
        lines: Int64Array,
        tokens: Int64Array,
        ids: Int64Array,
        name: str = "hash_ids",
    ) -> IdCounts:
        """Return the counts of the rows that have ids and tokens."""
        kept = np.flatnonzero((ids > 0) & (tokens > 0))
        return cls(labels, name, lines[kept], tokens[kept], ids[kept])

    def expected(self, block_size: int, tail: Tail) -> Int64Array:
        """Return the number of ids that each row should have."""
        return -(-self.tokens // block_size) if tail == "ceil" else self.tokens // block_size

    def fits(self, block_size: int, tail: Tail) -> bool:
        """Return whether every row has the number of ids that the rule asks for."""
        return bool((self.ids == self.expected(block_size, tail)).all())

    def fitting_sizes(self, tail: Tail) -> list[int]:
        """Return the powers of two that fit every row."""
        if len(self.ids) == 0:
            return []
        if tail == "ceil":
            low = -(-self.tokens // self.ids)
            high = np.where(self.ids > 1, (self.tokens - 1) // np.maximum(self.ids - 1, 1), _LARGEST)
        else:
            low, high = self.tokens // (self.ids + 1) + 1, self.tokens // self.ids
        first, last = int(low.max()), int(high.min())
        return [1 << k for k in range(_LARGEST.bit_length()) if first <= 1 << k <= last]


def check_counts(counts: IdCounts, block_size: int, tail: Tail) -> None:
    """Check every row against one size and rule.

    **Raises:** `TraceError` that names the first row that has another number of ids.
    """
    expected = counts.expected(block_size, tail)
    wrong = np.flatnonzero(counts.ids != expected)
    if len(wrong):
        row = int(wrong[0])
        raise TraceError(
            f"{counts.ids[row]} ids for {counts.tokens[row]} tokens @ "
            f"{counts.labels.place(int(counts.lines[row]), counts.name)}: expected {expected[row]} "
            f"({block_size} tokens an id, {tail} rule); correct the row, or the block size and tail rule"
        )


def settle_tail(counts: IdCounts, block_size: int, tail: Tail | None) -> Tail:
    """Return the tail rule that every row follows at a known block size; ``ceil`` where both do.

    **Raises:** `TraceError` that names a row where none, or not the given one, holds.
    """
    fitting = (rule for rule in TAILS if counts.fits(block_size, rule))
    settled = tail or next(fitting, None) or _first_rule(counts, block_size)
    check_counts(counts, block_size, settled)
    return settled


def _first_rule(counts: IdCounts, block_size: int) -> Tail:
    """Return the rule that the first row which tells the rules apart follows."""
    for rule in TAILS:
        other = TAILS[1 - TAILS.index(rule)]
        apart = counts.expected(block_size, rule) != counts.expected(block_size, other)
        row = int(np.flatnonzero(apart)[0]) if apart.any() else 0
        if counts.ids[row] == counts.expected(block_size, rule)[row]:
            return rule
    return "ceil"


def settle_blocks(counts: IdCounts, implied_size: int, tail: Tail | None) -> tuple[int, Tail]:
    """Return block size and tail rule of a file that states neither; its format implies ``implied_size``.

    The implied size is taken only when it fits every row by the ceil rule (or the given one) and no other
    power of two fits them by any rule.

    **Raises:** `AmbiguousTrace` when other sizes fit too or instead; `TraceError` when none fits.
    """
    rules: tuple[Tail, ...] = TAILS if tail is None else (tail,)
    fits = sorted((size, rule) for rule in rules for size in counts.fitting_sizes(rule))
    wanted: Tail = tail or "ceil"
    if (implied_size, wanted) in fits and {size for size, _ in fits} == {implied_size}:
        return implied_size, wanted
    if not fits:
        check_counts(counts, implied_size, wanted)
    rows = len(counts.ids)
    choices = ", ".join(f"{size} ({rule})" for size, rule in fits[:6])
    more = "" if len(fits) <= 6 else f" and {len(fits) - 6} more"
    raise AmbiguousTrace(
        f"the file does not say how many tokens a prefix id stands for; its {rows} rows with ids fit "
        f"{choices}{more}, and the format implies {implied_size} (ceil): give --trace-block-size, and --tail "
        "ceil or floor"
    )
