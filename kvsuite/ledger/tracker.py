"""From snapshots to ledger rows: one `PoolTracker` a pool, fed once a step."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from kvsuite.engine.snapshot import PoolKind
from kvsuite.errors import EngineError
from kvsuite.ledger.block_states import CACHED, FREE, NEVER, QUARANTINED, BlockStates
from kvsuite.ledger.holdings import Changes, Holdings
from kvsuite.ledger.row import COLUMN_NAMES, INDEX
from kvsuite.ledger.sequence_laws import given_lengths, table_slack, window_dropped
from kvsuite.ledger.snapshot_checks import check_snapshot, table_differences, table_laws
from kvsuite.ledger.timeline import PoolTimeline, RowBuffer

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from kvsuite.engine.snapshot import Int32Array, Int64Array, PoolSnapshot, PoolSpec
    from kvsuite.ledger.invariants import Violation
    from kvsuite.trace.model import RequestId

MAX_KEPT_VIOLATIONS = 200


@dataclass(slots=True)
class StepFacts:
    """What the scheduler knows of a step and no snapshot shows; names are ledger columns."""

    counts: dict[str, int] = field(default_factory=dict)
    hit_tokens: dict[RequestId, int] = field(default_factory=dict)
    """Prefix hits of the sequences admitted this step."""

    def add(self, column: str, amount: int = 1) -> None:
        """Add to a column."""
        self.counts[column] = self.counts.get(column, 0) + amount


class PoolTracker:
    """Rows of one pool, and every contradiction seen on the way.

    ``order``, ``lengths``, ``stored``, ``used``, ``held`` and ``last_blocks`` describe the live sequences of
    the newest snapshot, oldest first: tokens, those of them with slots, table entries that hold one, all
    entries, and the last block that does.
    """

    def __init__(self, spec: PoolSpec) -> None:
        self.spec = spec
        self.holdings = Holdings(spec.num_blocks)
        self.states = BlockStates(spec)
        self.violations: list[Violation] = []
        self.violations_dropped = 0
        self.revision: int | None = None
        self.claims_ref_counts = True
        """Whether every snapshot so far gave reference counts."""
        self.agrees = True
        """Whether the newest snapshot shows the sequences and lengths that the scheduler gave tokens to."""
        self.order: tuple[RequestId, ...] = ()
        self.lengths: Int64Array = np.zeros(0, np.int64)
        self.stored: Int64Array = np.zeros(0, np.int64)
        self.used: Int64Array = np.zeros(0, np.int64)
        self.held: Int64Array = np.zeros(0, np.int64)
        self.last_blocks: Int32Array = np.zeros(0, np.int32)
        self._rows = RowBuffer()
        self._changes = Changes()
        self._lookahead_blocks = 0

    def blocks_of(self, request_id: RequestId) -> Int32Array:
        """Return a live sequence's table, as last seen."""
        return self.holdings.tables[request_id].blocks

    def valuable_blocks(self) -> Int64Array:
        """Return the blocks whose content may still be read: held, cached or quarantined."""
        kept = np.flatnonzero((self.holdings.holders > 0) | self.states.may_be_read())
        return kept.astype(np.int64)

    def fork(self, parent_id: RequestId, child_id: RequestId) -> None:
        """Learn that the engine forked ``parent_id``; one that is shown nowhere has nothing to share."""
        if self.spec.key.tier == "device" and parent_id in self.holdings.tables:
            self.holdings.share(parent_id, child_id)

    def take(self, snapshot: PoolSnapshot, facts: StepFacts, step: int) -> None:
        """Take in the snapshot of one step.

        **Raises:** `EngineError` for one that has not the form of the contract, or builds on another.
        """
        check_snapshot(snapshot, self.spec, step, known=self.order, revision=self.revision)
        if not snapshot.is_full and snapshot.since != self.revision:
            raise EngineError(
                f"pool {self.spec.key} answered with changes since revision {snapshot.since} at step {step}, "
                f"asked for changes since {self.revision}: answer with a full snapshot when in doubt"
            )
        self._changes = Changes()
        self.holdings.null_ids = snapshot.null_ids
        self._take_tables(snapshot, facts, step)
        cached_hits = sum(self.states.count_cached(ids) for ids in self._changes.hit_ids)
        self.claims_ref_counts &= snapshot.ref_count_ids is not None
        if snapshot.is_full:
            self._keep(self.states.take_full(snapshot, step))
            self._keep(self.states.partition(self.holdings, snapshot, step))
            self._keep(table_laws(snapshot, self.spec, step))
        else:
            self._keep(self.states.take_changes(snapshot, step))
            self._keep(self.states.changed_live(self.holdings, snapshot, step))
        self.states.evicted -= cached_hits
        self._keep(self.states.recount(self.holdings, snapshot, step))
        self._keep(table_slack(self.spec, snapshot, self.held, step))
        self.revision = snapshot.revision

    def agree(self, request_ids: list[RequestId], lengths: list[int], step: int) -> None:
        """Check the live sequences and their lengths against what the scheduler gave tokens to.

        Sequences run on the device: in the pools of another tier none is expected.
        """
        if self.spec.key.tier != "device":
            request_ids, lengths = [], []
        found = list(given_lengths(self.spec, self.order, self.lengths, request_ids, lengths, step))
        self.agrees = not found
        self._keep(found)

    def window_law(self, settled: Mapping[RequestId, int], hits: Mapping[RequestId, int], step: int) -> None:
        """Check what a window has let go of.

        ``settled`` is how long each sequence was before this step, ``hits`` what was found of new ones.
        """
        if self.spec.kind is PoolKind.WINDOW:
            tables = {request_id: self.blocks_of(request_id) for request_id in self.order}
            self._keep(window_dropped(self.spec, tables, self.holdings.null_ids, settled, hits, step))

    @property
    def changes(self) -> Changes:
        """What the newest snapshot shows otherwise than the one before."""
        return self._changes

    def compare_full(self, full: PoolSnapshot, step: int) -> None:
        """Check that a full snapshot of the same moment is what the changes came to.

        **Raises:** `EngineError` for one that has not the form of the contract.
        """
        check_snapshot(full, self.spec, step, known=self.order, revision=self.revision)
        self._keep(self.states.differences(full, step))
        self.states.take_ref_counts(full)
        self._keep(self.states.partition(self.holdings, full, step))
        self._keep(self.states.recount(self.holdings, full, step))
        self._keep(table_laws(full, self.spec, step))
        self._keep(table_differences(full, self.holdings, self.spec, step))
        self.revision = full.revision

    def add_row(self, snapshot: PoolSnapshot, facts: StepFacts) -> None:
        """Add the row of the snapshot just taken."""
        row = dict.fromkeys(COLUMN_NAMES, 0) | self._category_columns()
        row |= self._sequence_columns(snapshot) | self._block_columns(snapshot) | facts.counts
        self._rows.append(list(row.values()))

    def add_to_last_row(self, facts: StepFacts) -> None:
        """Add what ended after the row was taken."""
        row = self._rows.last()
        for name, amount in facts.counts.items():
            row[INDEX[name]] += amount

    def timeline(self) -> PoolTimeline:
        """Return the rows taken so far."""
        return PoolTimeline(self.spec, self._rows.finish())

    def _take_tables(self, snapshot: PoolSnapshot, facts: StepFacts, step: int) -> None:
        tables = self.holdings.tables
        order = snapshot.request_ids
        if order != self.order or len(tables) != len(order):
            alive = set(order)
            for request_id in [known for known in tables if known not in alive]:
                self.holdings.remove(request_id, self._changes)
        # A copy: tables are kept, and the engine may use its buffer again.
        blocks, ends = snapshot.table_blocks.copy(), snapshot.table_offsets.tolist()
        rows = snapshot.table_rows.tolist()
        given = {order[row]: blocks[ends[c] : ends[c + 1]] for c, row in enumerate(rows)}
        lost = [request_id for request_id in order if request_id not in given and request_id not in tables]
        if lost:
            raise EngineError(
                f"pool {self.spec.key} shows {lost[0]} live at step {step} without its table: "
                "a changed snapshot gives the table of every new sequence"
            )
        self.order, self.lengths = order, snapshot.lengths
        self.stored = self.spec.stored_tokens(snapshot.lengths)
        self._take_uses(snapshot, given, facts.hit_tokens)

    def _take_uses(
        self, snapshot: PoolSnapshot, given: Mapping[RequestId, Int32Array], hits: Mapping[RequestId, int]
    ) -> None:
        size = self.spec.block_size
        tables, order = self.holdings.tables, self.order
        state = self.spec.kind is PoolKind.STATE
        wanted = [1] * len(order) if state else (-(-self.stored // size)).tolist()
        used, held, last = [0] * len(order), [0] * len(order), [0] * len(order)
        for row, request_id in enumerate(order):
            blocks = given.get(request_id)
            old = tables.get(request_id)
            if blocks is None:
                assert old is not None
                blocks = old.blocks
            held[row] = len(blocks)
            entries = used[row] = min(wanted[row], len(blocks))
            last[row] = blocks[entries - 1] if entries else -1
            if old is None or blocks is not old.blocks or entries != old.used:
                hit_blocks = hits.get(request_id, 0) // size
                self.holdings.update(request_id, blocks, entries, hit_blocks, self._changes)
        self.used = np.array(used, np.int64)
        self.held = np.array(held, np.int64)
        self.last_blocks = np.array(last, np.int32)
        ahead = np.minimum(-(-(snapshot.lengths + snapshot.lookahead_tokens) // size), self.held)
        self._lookahead_blocks = int((ahead - self.used).sum()) if snapshot.lookahead_tokens else 0

    def _category_columns(self) -> dict[str, int]:
        size = self.spec.block_size
        holdings, states = self.holdings, self.states
        tails, fills, saved = self._tail_fills()
        ahead = over = 0
        if holdings.beyond_entries:
            beyond = (holdings.beyond > 0) & (holdings.inner == 0)
            beyond[tails] = False
            ahead = self._lookahead_blocks
            over = int(np.count_nonzero(beyond)) - ahead
        return {
            "payload": holdings.inner_blocks * size + int(fills.sum()),
            "slack": int((size - fills).sum()) + ahead * size,
            "over_reserved": over * size,
            "cached": states.counts[CACHED] * size,
            "quarantined": states.counts[QUARANTINED] * size,
            "free": states.counts[FREE] * size,
            "never_allocatable": states.counts[NEVER] * size,
            "sharing_saved": (holdings.inner_entries - holdings.inner_blocks) * size + saved,
            "live_blocks": holdings.live_blocks,
            "full_blocks": holdings.inner_blocks + int(np.count_nonzero(fills == size)),
            "final_blocks": len(tails),
            "shared_blocks": holdings.shared_blocks,
            "table_entries": holdings.table_entries,
            "distinct_touched": holdings.distinct_touched,
        }

    def _tail_fills(self) -> tuple[Int32Array, Int64Array, int]:
        """Return last blocks that are inner to nobody, how full each is, and slots saved by sharing."""
        real = self.used > 0
        blocks, fills = self.last_blocks[real], (self.stored - (self.used - 1) * self.spec.block_size)[real]
        fills = np.minimum(fills, self.spec.block_size)
        lone = self.holdings.inner[blocks] == 0
        saved = int(fills[~lone].sum())
        blocks, fills = blocks[lone], fills[lone]
        if len(set(blocks.tolist())) == len(blocks):
            return blocks, fills, saved
        order = np.lexsort((-fills, blocks))
        blocks, fills = blocks[order], fills[order]
        first = np.ones(len(blocks), np.bool_)
        first[1:] = blocks[1:] != blocks[:-1]
        return blocks[first], fills[first], saved + int(fills[~first].sum())

    def _sequence_columns(self, snapshot: PoolSnapshot) -> dict[str, int]:
        size = self.spec.block_size
        lengths = np.sort(self.lengths)
        count = len(lengths)
        let_go = 0 if snapshot.first_live is None else snapshot.first_live // size * size
        dropped = int((self.lengths - self.stored + let_go).sum())

        def nearest_rank(percent: int) -> int:
            return int(lengths[-(-percent * count // 100) - 1]) if count else 0

        return {
            "logical": int(lengths.sum()),
            "window_dropped": dropped,
            "max_slack": int((self.held * size - self.stored).max(initial=0)),
            "length_min": int(lengths[0]) if count else 0,
            "length_p50": nearest_rank(50),
            "length_p90": nearest_rank(90),
            "length_max": int(lengths[-1]) if count else 0,
            "running": count,
        }

    def _block_columns(self, snapshot: PoolSnapshot) -> dict[str, int]:
        states, changes = self.states, self._changes
        blocks = states.counts[FREE] + states.counts[CACHED]
        if snapshot.largest_free_run is not None:
            blocks = snapshot.largest_free_run
        return {
            "largest_admissible": blocks * self.spec.block_size,
            "allocated": changes.allocated,
            "reactivated": changes.reactivated,
            "freed": changes.freed,
            "evicted": states.evicted,
            "private_transitions": changes.private_transitions,
            "id_order": self.holdings.id_order,
        }

    def _keep(self, found: Iterable[Violation]) -> None:
        for violation in found:
            if len(self.violations) < MAX_KEPT_VIOLATIONS:
                self.violations.append(violation)
            else:
                self.violations_dropped += 1
