"""From rows of the engine's tensor to slots, ``block * block size + offset``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvsuite.engine.snapshot import Int64Array


def rows_to_slots(rows: Sequence[int], rows_per_block: int, block_size: int) -> Int64Array:
    """Return the slots of tensor rows, int64[len]; a block of keys and values spans more rows than tokens.

    >>> rows_to_slots([64, 65, 96], rows_per_block=32, block_size=16).tolist()
    [32, 33, 48]
    """
    blocks, offsets = np.divmod(np.array(rows, np.int64), np.int64(rows_per_block))
    return blocks * np.int64(block_size) + offsets
