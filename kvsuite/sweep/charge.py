"""Block tables charged to the pool: what an option spends on tables holds no token."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kvsuite.errors import ConfigError
from kvsuite.sweep.lengths import longest_declared_tokens

if TYPE_CHECKING:
    from kvsuite.cache.layout import Layout
    from kvsuite.sweep.cells import Cell
    from kvsuite.trace.model import Trace

ENTRY_BYTES = 4
"""A block id in a table: int32, as `PoolSpec.table_entry_bytes`."""


def table_bytes(
    block_size: int, *, max_sequences: int, max_model_tokens: int, groups: int = 1, copies: int = 1
) -> int:
    """Return the bytes of the storages that hold all block tables: rows x width x entry x groups x copies.

    Engines allocate them once, for as many rows as sequences may run and as wide as the longest one.

    >>> table_bytes(16, max_sequences=256, max_model_tokens=8192)
    524288
    """
    width = -(-max_model_tokens // block_size)
    return max_sequences * width * ENTRY_BYTES * groups * copies


def blocks_left(layout: Layout, pool_bytes: int, block_size: int, charged_bytes: int) -> int:
    """Return the blocks that a pool has room for beside ``charged_bytes`` of tables.

    **Raises:** `ConfigError` when none is left.
    """
    left = layout.blocks_in(max(pool_bytes - charged_bytes, 0), block_size)
    if left < 1:
        raise ConfigError(
            f"block tables of {charged_bytes} bytes leave no block of {block_size} tokens "
            f"({layout.block_bytes(block_size)} bytes) in a pool of {pool_bytes} bytes: give a larger "
            "pool or larger blocks"
        )
    return left


def charged(cell: Cell, trace: Trace) -> tuple[Cell, int]:
    """Return the cell on what its tables leave of its pool, and the bytes of the tables; a control has none.

    **Raises:** `ConfigError` when no block is left.
    """
    if cell.is_control:
        return cell, 0
    spent = table_bytes(
        cell.block_size,
        max_sequences=cell.scheduler.max_sequences,
        max_model_tokens=cell.max_model_tokens or longest_declared_tokens(trace),
    )
    blocks_left(cell.layout, cell.pool_bytes, cell.block_size, spent)
    return replace(cell, pool_bytes=cell.pool_bytes - spent), spent
