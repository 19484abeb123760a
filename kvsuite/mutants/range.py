"""Engines whose indices, tables or padding reach where nothing of theirs is."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from kvsuite.engine.extensions.window import NULL, WindowEngine
from kvsuite.engine.reference import ReferenceEngine
from kvsuite.engine.snapshot import NO_BLOCKS
from kvsuite.mutants.table import mutant

if TYPE_CHECKING:
    from kvsuite.engine.config import EngineConfig
    from kvsuite.engine.snapshot import PoolSnapshot

_RANGE = "conformance/test_range.py::"


@mutant(
    "index-unchecked",
    caught_by="range",
    shown_by="a pool of 2^31 elements",
    kind="RANGE",
    killer=f"{_RANGE}test_a_pool_beyond_its_indices_is_refused_with_the_limit",
)
class IndexUnchecked(ReferenceEngine):
    """A pool is taken whatever its size, and addressed in 32 bits."""

    def __init__(self, config: EngineConfig) -> None:
        options = {name: value for name, value in config.options.items() if name != "index_bits"}
        super().__init__(replace(config, options=options))
        (pool,) = self._spec.pools
        self._spec = replace(self._spec, pools=(replace(pool, index_bits=32),))


@mutant(
    "table-one-column-short",
    caught_by="range",
    shown_by="a sequence longer than the table was made for",
    kind="RANGE",
    killer=f"{_RANGE}test_no_length_and_no_id_lies_beyond_the_table",
)
class TableOneColumnShort(ReferenceEngine):
    """A table has the columns of the longest sequence, and a longer one is let in all the same."""

    def __init__(self, config: EngineConfig) -> None:
        super().__init__(config)
        longest = config.max_model_tokens or config.num_blocks * config.block_size
        self._columns = self.cache.blocks_for(longest)

    def snapshot(self, since: int | None = None) -> tuple[PoolSnapshot, ...]:
        """Cut every table at the last column."""
        del since
        (shot,) = super().snapshot()
        tables = [shot.table(row)[: self._columns] for row in range(len(shot.request_ids))]
        offsets = np.zeros(len(tables) + 1, np.int64)
        np.cumsum([len(table) for table in tables], out=offsets[1:])
        return (replace(shot, table_offsets=offsets, table_blocks=np.concatenate([NO_BLOCKS, *tables])),)


@mutant(
    "ids-from-one",
    caught_by="range",
    shown_by="the last block of a pool in use",
    kind="RANGE",
    killer=f"{_RANGE}test_no_length_and_no_id_lies_beyond_the_table",
)
class IdsFromOne(ReferenceEngine):
    """Tables count blocks from 1, so that the last block is one past the pool."""

    def snapshot(self, since: int | None = None) -> tuple[PoolSnapshot, ...]:
        """Shift every entry."""
        (shot,) = super().snapshot(since)
        return (replace(shot, table_blocks=shot.table_blocks + np.int32(1)),)


@mutant(
    "null-block-in-use",
    caught_by="range",
    shown_by="two sequences, one of them past its window",
    kind="RANGE",
    killer=f"{_RANGE}test_positions_before_a_window_lead_to_nobodys_block",
)
class NullBlockInUse(WindowEngine):
    """Entries before a window are zero, and block 0 is given out like any other."""

    def __init__(self, config: EngineConfig) -> None:
        super().__init__(config)
        self.cache.pool._free.append(NULL)
        self._never_allocatable = NO_BLOCKS
        (pool,) = self._spec.pools
        self._spec = replace(self._spec, pools=(replace(pool, never_allocatable_blocks=0),))


@mutant(
    "padding-block-given-out",
    caught_by="content",
    shown_by="a padded batch beside a sequence that holds block 0",
    kind="RANGE",
    killer=f"{_RANGE}test_filler_rows_of_a_padded_batch_write_to_nobody",
)
class PaddingBlockGivenOut(ReferenceEngine):
    """The block that padding points to is set apart in name, and handed to the first sequence."""

    def __init__(self, config: EngineConfig) -> None:
        super().__init__(config)
        if len(self._never_allocatable):
            self.cache.pool._free.append(int(self._never_allocatable[0]))
