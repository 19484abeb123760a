"""Where an observed ledger leaves its golden: the first divergence, the rows around it, and how much differs.

Lines are aligned by step, so a row more or less moves nothing else, and the work is linear in the rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvsuite.golden.codec import COUNTED, decode_rows
from kvsuite.golden.document import Bucket, Entry, entry_line
from kvsuite.ledger.row import ABSENT

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from kvsuite.golden.document import Document, PoolGolden
    from kvsuite.golden.key import Scalar

MAX_DIFF_LINES = 40
CONTEXT_ROWS = 3


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first place where two ledgers part; ``column`` names a column, or what stands for one."""

    step: int
    column: str
    expected: int | None
    found: int | None
    sentence: str


@dataclass(frozen=True, slots=True)
class Comparison:
    """How an observed ledger stands to a golden.

    ``rows`` are the counted columns and the fixed facts of the pools; ``footprint`` is which blocks were
    used and in what order; ``changed`` lists effective values and facts as ``name: old -> new``.
    """

    rows_equal: bool
    footprint_equal: bool
    suite_equal: bool
    changed: tuple[str, ...]
    divergence: Divergence | None
    diff: tuple[str, ...]
    lines_differ: int

    @property
    def equal(self) -> bool:
        """Whether nothing that is compared differs."""
        return self.rows_equal and self.footprint_equal and self.suite_equal and not self.changed


@dataclass(frozen=True, slots=True)
class _PoolDiff:
    pool: PoolGolden
    divergence: Divergence | None
    diff: tuple[str, ...]
    lines_differ: int


def compare(golden: Document, observed: Document) -> Comparison:
    """Return how ``observed`` stands to ``golden``; both with the same ``rows_per_line``."""
    columns = _shared_columns(golden)
    several = len(golden.pools) > 1
    pairs = list(zip(golden.pools, observed.pools, strict=False))
    parts = [_compare_pool(old, new, columns, several) for old, new in pairs]
    rows = [part for part in parts if part.lines_differ]
    footprints = [found for old, new in pairs if (found := _footprint_divergence(old, new, several))]
    facts = _facts_changed(golden, observed)
    first = min(
        (p for p in rows if p.divergence),
        key=lambda p: p.divergence.step if p.divergence else 0,
        default=None,
    )
    return Comparison(
        rows_equal=not rows and not facts,
        footprint_equal=not footprints,
        suite_equal=golden.suite == observed.suite,
        changed=(*changed_values(golden.effective, observed.effective), *facts),
        divergence=first.divergence if first else next(iter(footprints), None),
        diff=first.diff if first else (),
        lines_differ=sum(part.lines_differ for part in parts),
    )


def changed_values(old: Mapping[str, object], new: Mapping[str, object]) -> tuple[str, ...]:
    """Return every difference of two mappings as ``name: old -> new``, in order of name.

    >>> changed_values({"cow": "lazy", "a": 1}, {"cow": "eager", "b": True})
    ('a: 1 -> (not given)', 'b: (not given) -> True', 'cow: lazy -> eager')
    """
    names = sorted(old.keys() | new.keys())
    gone = "(not given)"
    return tuple(
        f"{name}: {old.get(name, gone)} -> {new.get(name, gone)}"
        for name in names
        if old.get(name, gone) != new.get(name, gone)
    )


def _shared_columns(golden: Document) -> frozenset[str]:
    known = {name for pool in golden.pools for name in (*pool.totals, *pool.peaks)}
    return frozenset(known & set(COUNTED))


def _facts_changed(golden: Document, observed: Document) -> tuple[str, ...]:
    old: dict[str, Scalar] = {"pools": len(golden.pools)}
    new: dict[str, Scalar] = {"pools": len(observed.pools)}
    for facts, document in ((old, golden), (new, observed)):
        for index, pool in enumerate(document.pools):
            facts.update({f"pool {index} {name}": value for name, value in pool.facts.items()})
            facts[f"pool {index} absent columns"] = ", ".join(
                sorted(set(pool.absent) & _shared_columns(golden))
            )
    return changed_values(old, new)


def _compare_pool(old: PoolGolden, new: PoolGolden, columns: frozenset[str], several: bool) -> _PoolDiff:
    pairs = list(_aligned(old.lines, new.lines))
    wrong = [place for place, (a, b) in enumerate(pairs) if not _same(a, b, columns)]
    if not wrong:
        return _PoolDiff(old, None, (), 0)
    divergence = _first_divergence(old, new, pairs[wrong[0]], columns, several)
    return _PoolDiff(old, divergence, _context(pairs, wrong[0], set(wrong)), len(wrong))


_Line = Entry | Bucket
_Pair = tuple[_Line | None, _Line | None]


def _aligned(old: Sequence[_Line], new: Sequence[_Line]) -> Iterator[_Pair]:
    """Yield lines of both side by side, by step; ``None`` where one has no row."""
    i = j = 0
    while i < len(old) or j < len(new):
        a = old[i] if i < len(old) else None
        b = new[j] if j < len(new) else None
        if a and b and a.step != b.step:
            a, b = (a, None) if a.step < b.step else (None, b)
        i, j = i + (a is not None), j + (b is not None)
        yield a, b


def _same(a: _Line | None, b: _Line | None, columns: frozenset[str]) -> bool:
    if a is None or b is None:
        return False
    if isinstance(a, Bucket) and isinstance(b, Bucket) and columns == frozenset(COUNTED):
        return a == b
    return all(a.changes.get(name, 0) == b.changes.get(name, 0) for name in columns)


def _first_divergence(
    old: PoolGolden, new: PoolGolden, pair: _Pair, columns: frozenset[str], several: bool
) -> Divergence:
    line = pair[0] or pair[1]
    assert line is not None
    where = (
        f"the {line.rows} rows up to step {line.step}" if isinstance(line, Bucket) else f"step {line.step}"
    )
    where += f" of pool {old.facts['key']}" if several else ""
    if pair[0] is None or pair[1] is None:
        rows = (int(pair[0] is not None), int(pair[1] is not None))
        return Divergence(line.step, "rows", *rows, f"{where}: expected {rows[0]} rows, found {rows[1]}")
    expected, found = (_values_at(pool, line.step) for pool in (old, new))
    for name in COUNTED:
        if name in columns and expected[name] != found[name]:
            said = f"{where}, {name}: expected {_shown(expected[name])}, found {_shown(found[name])}"
            return Divergence(line.step, name, expected[name], found[name], said)
    return Divergence(
        line.step, "digest", None, None, f"{where}: rows inside differ, though their sums agree"
    )


def _values_at(pool: PoolGolden, step: int) -> dict[str, int | None]:
    until = [line for line in pool.lines if line.step <= step]
    values = decode_rows(until)[-1].tolist()
    return {n: None if v == ABSENT else v for n, v in zip(COUNTED, values, strict=True)}


def _shown(value: int | None) -> str:
    return "nothing seen" if value is None else str(value)


def _context(pairs: list[_Pair], first: int, wrong: set[int]) -> tuple[str, ...]:
    lines: list[str] = []
    for place in range(max(0, first - CONTEXT_ROWS), len(pairs)):
        old, new = pairs[place]
        if place in wrong:
            lines += [f"- {entry_line(old)}"] if old else []
            lines += [f"+ {entry_line(new)}"] if new else []
        elif old:
            lines.append(f"  {entry_line(old)}")
        if len(lines) >= MAX_DIFF_LINES or (place not in wrong and place > max(wrong) + CONTEXT_ROWS):
            break
    return tuple(lines[:MAX_DIFF_LINES])


def _footprint_divergence(old: PoolGolden, new: PoolGolden, several: bool) -> Divergence | None:
    where = f" of pool {old.facts['key']}" if several else ""
    for a, b in zip(old.footprint, new.footprint, strict=False):
        if a.step == b.step and a == b:
            continue
        if a.distinct_touched != b.distinct_touched:
            name, expected, found = "distinct_touched", a.distinct_touched, b.distinct_touched
            said = f"{name}: expected {_shown(expected)}, found {_shown(found)}"
        else:
            name, expected, found = "id_order", a.id_order, b.id_order
            said = f"{name}: as many blocks came into use, in another order"
        return Divergence(a.step, name, expected, found, f"by step {a.step}{where}, {said}")
    return None
