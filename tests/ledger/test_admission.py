"""Each law of admission is broken by an answer made up for it, and silent on the right one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from kvsuite.engine.contract import Admission, Refusal, RefusalReason
from kvsuite.engine.snapshot import PoolKey, PoolKind, PoolSnapshot, PoolSpec
from kvsuite.ledger import admission as laws
from kvsuite.ledger.row import COLUMN_NAMES, INDEX
from kvsuite.ledger.timeline import PoolTimeline, Timeline
from kvsuite.trace.model import RequestId

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kvsuite.engine.snapshot import Int32Array
    from kvsuite.ledger.invariants import Violation

SPEC = PoolSpec(PoolKey(), num_blocks=10, block_size=4, bytes_per_token=2, never_allocatable_blocks=1)
NEW = RequestId("new")


def ids(*blocks: int) -> Int32Array:
    return np.array(blocks, np.int32)


def shot(tables: dict[str, list[int]], free: Int32Array, cached: Int32Array) -> PoolSnapshot:
    lengths = [4 * len(table) for table in tables.values()]
    return PoolSnapshot(
        key=SPEC.key,
        revision=1,
        since=None,
        request_ids=tuple(RequestId(name) for name in tables),
        lengths=np.array(lengths, np.int64),
        table_rows=np.arange(len(tables), dtype=np.int32),
        table_offsets=np.cumsum([0, *map(len, tables.values())], dtype=np.int64),
        table_blocks=ids(*(block for table in tables.values() for block in table)),
        free=free,
        cached=cached,
    )


OLD = {"old": [1, 2, 3]}
BEFORE = shot(OLD, free=ids(4, 5, 6), cached=ids(7, 8))
"""5 blocks can be had, 3 free and 2 cached; block 0 is never given out, so 9 are usable."""


def accepted(tokens: int, table: list[int], hit_tokens: int = 0) -> laws.Offer:
    after = shot({**OLD, "new": table}, free=ids(), cached=ids())
    return laws.Offer(SPEC, NEW, tokens, Admission(hit_tokens, 4 * len(table)), BEFORE, after)


def refused(
    tokens: int,
    told: tuple[int, int, int],
    *,
    hits: tuple[int, ...] | None = (),
    reason: RefusalReason = RefusalReason.NO_BLOCKS,
) -> laws.Offer:
    admission = Admission(refusal=Refusal(*told, SPEC.key, reason))
    return laws.Offer(SPEC, NEW, tokens, admission, BEFORE, BEFORE, hits)


def names(found: Iterable[Violation]) -> list[str]:
    return [violation.invariant for violation in found]


def test_an_idle_hit_is_no_room() -> None:
    assert names(laws.promise(accepted(20, [7, 8, 4, 5, 6], hit_tokens=8))) == []
    # 4 new blocks and 2 idle hits want 6 of the 5 that can be had; so far 1 of the 4 was taken.
    (found,) = laws.promise(accepted(24, [7, 8, 4], hit_tokens=8))
    assert "4 new blocks beside 2 idle hits" in found.message
    assert names(laws.promise(accepted(24, [1, 2, 4], hit_tokens=8))) == []  # held hits cost nothing


@pytest.mark.parametrize(
    ("tokens", "told", "hits", "broken"),
    [
        (24, (6, 3, 2), (), 0),
        (24, (4, 3, 0), (7, 8), 0),
        (24, (4, 3, 2), (7, 8), 2),  # own hits told as room, and then 4 <= 5 is no reason
        (24, (5, 3, 2), (), 2),  # 5 told where 6 are needed, and 5 <= 5
        (24, (6, 2, 2), (), 1),
        (24, (6, 3, 0), None, 0),  # not knowing the hits, fewer reclaimable ones may be right
        (24, (7, 3, 3), None, 1),
    ],
)
def test_what_a_refusal_tells_is_so(
    tokens: int, told: tuple[int, int, int], hits: tuple[int, ...] | None, broken: int
) -> None:
    assert names(laws.promise(refused(tokens, told, hits=hits))) == ["promise"] * broken


def test_told_is_taken() -> None:
    early, late = refused(24, (6, 3, 2)), accepted(24, [4, 5, 6, 7, 8, 3])
    assert names(laws.told_and_taken(early, late)) == []
    (found,) = laws.told_and_taken(refused(24, (5, 3, 2)), late)
    assert found.message.endswith("told it needs 5 blocks and then took 6")


@pytest.mark.parametrize(
    ("tokens", "reason", "broken"),
    [
        (36, RefusalReason.NO_BLOCKS, []),
        (37, RefusalReason.NEVER_FITS, []),
        (37, RefusalReason.NO_BLOCKS, ["progress"]),
        (36, RefusalReason.NEVER_FITS, ["progress"]),
    ],
)
def test_never_is_said_of_more_than_the_usable_blocks(
    tokens: int, reason: RefusalReason, broken: list[str]
) -> None:
    assert names(laws.never_fits(refused(tokens, (10, 3, 2), reason=reason))) == broken


@pytest.mark.parametrize(
    ("tokens", "kept", "reason", "broken"),
    [
        (36, 1, RefusalReason.NEVER_FITS, []),  # 9 blocks of 9, and 1 is never given away
        (36, 1, RefusalReason.NO_BLOCKS, []),  # or it is, once nothing runs
        (32, 1, RefusalReason.NEVER_FITS, ["progress"]),
        (32, 2, RefusalReason.NEVER_FITS, []),
        (37, 2, RefusalReason.WATERMARK, ["progress"]),
    ],
)
def test_never_may_be_said_of_what_a_watermark_keeps_out(
    tokens: int, kept: int, reason: RefusalReason, broken: list[str]
) -> None:
    offer = refused(tokens, (10, 3, 2), reason=reason)
    assert names(laws.never_fits(offer, kept)) == broken


def test_a_watermark_is_left_beside_live_sequences() -> None:
    offer = accepted(16, [4, 5, 6, 7])
    assert names(laws.headroom_kept(offer, 1)) == []
    assert names(laws.headroom_kept(offer, 2)) == ["headroom"]
    alone = laws.Offer(SPEC, NEW, 16, Admission(0, 16), shot({}, ids(4, 5, 6, 7), ids()), offer.after)
    assert names(laws.headroom_kept(alone, 2)) == []


@pytest.mark.parametrize(
    ("preemptions", "broken"),
    [
        ([(0, 9), (4, 5), (8, 5)], 0),
        ([(0, 0), (4, 0)], 0),
        ([(0, 9), (4, 9)], 1),
        ([(0, 5), (4, 6), (8, 2)], 1),
        ([(0, 5), (4, 6)], 2),
    ],
)
def test_head_room_helps(preemptions: list[tuple[int, int]], broken: int) -> None:
    assert names(laws.headroom_helps(preemptions, "p")) == ["headroom"] * broken


def timeline(*rows: dict[str, int]) -> Timeline:
    table = np.zeros((len(rows), len(COLUMN_NAMES)), np.int64)
    for at, row in enumerate(rows):
        for name, value in row.items():
            table[at, INDEX[name]] = value
    return Timeline(np.arange(len(rows), dtype=np.int64) * 10, (PoolTimeline(SPEC, table),))


def test_nobody_waits_beside_an_idle_engine() -> None:
    waits, admits, runs = {"waiting": 2}, {"waiting": 1, "running": 1, "admitted": 1}, {"running": 1}
    assert names(laws.standstill(timeline(waits, admits, runs))) == []
    assert names(laws.standstill(timeline(waits, {"waiting": 1, "rejected": 1}))) == []
    (found,) = laws.standstill(timeline(runs, waits, waits, admits))
    assert (found.invariant, found.step) == ("progress", 10)


@pytest.mark.parametrize(("alpha", "broken"), [(0.0, 1), (0.24, 1), (0.25, 0), (1.0, 0)])
def test_recomputed_tokens_are_bounded_by_useful_ones(alpha: float, broken: int) -> None:
    done = timeline({"written": 60}, {"written": 40, "recomputed": 20, "preempted": 1})
    assert names(laws.recompute_bound(done.pools[0], alpha)) == ["recompute"] * broken


def test_promises_over_slots() -> None:
    assert laws.overcommit([1024] * 4, PoolSpec(PoolKey(), 64, 16, 1)) == 4.0
    assert laws.overcommit([36], SPEC) == 1.0


@pytest.mark.parametrize(("blocks", "broken"), [(1, 1), (2, 0)])
def test_the_floor_of_a_window(blocks: int, broken: int) -> None:
    spec = PoolSpec(PoolKey(), blocks, 256, 1, kind=PoolKind.WINDOW, window_tokens=128)
    assert names(laws.window_floor(spec)) == ["floor"] * broken
    assert names(laws.window_floor(PoolSpec(PoolKey(), blocks, 256, 1))) == []


def test_a_packed_batch_never_stands_alone() -> None:
    calm, pressed = laws.Pressure("p", 0, 0), laws.Pressure("p", 3, 1)
    assert names(laws.packing_control(calm, pressed)) == []
    assert names(laws.packing_control(calm, None)) == ["packing"]
    assert names(laws.packing_control(calm, calm)) == ["packing"]
    assert names(laws.packing_control(pressed, pressed)) == ["packing"]
    done = timeline({"refused_admissions": 2, "refused_growths": 1}, {"preempted": 1})
    assert laws.Pressure.of(done.pools[0]) == laws.Pressure("device/g0/r0", 3, 1)


def test_a_prompt_that_was_admitted_whole_is_refused_no_chunk() -> None:
    assert list(laws.chunk_granted(SPEC, "long", 30, 12, True, 3)) == []
    (found,) = laws.chunk_granted(SPEC, "long", 30, 12, False, 3)
    assert (found.invariant, found.step, found.pool) == ("promise", 3, str(SPEC.key))
    assert found.message.startswith("long was admitted whole and is refused a chunk at 12 of 30 tokens")
