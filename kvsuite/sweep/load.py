"""The one load at which decode steps of all options are compared."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvsuite.sweep.cells import Cell
    from kvsuite.sweep.clock import StepCosts


@dataclass(frozen=True, slots=True)
class Load:
    """The load at which step times are compared: the same for every option."""

    sequences: int
    context_tokens: int
    """Of each sequence."""

    def table_depth(self, cell: Cell) -> int:
        """Return the entries of one table; a control has no table."""
        return 0 if cell.is_control else max(1, -(-self.context_tokens // cell.block_size))

    def step_us(self, cell: Cell, costs: StepCosts) -> float:
        """Return the duration of a decode step at this load through the cell's tables."""
        read, entries = self.sequences * self.context_tokens, self.sequences * self.table_depth(cell)
        whole_us = costs.step_us([1, self.sequences, read, 0, 0, entries, 0])
        return whole_us + costs.block_us * self.sequences / cell.block_size
