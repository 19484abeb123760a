"""Where step costs come from: a calibration, or a stated cost model in a file.

    {"device": "...", "kernel": "...", "spread": 0.01, "blocks": {"16": {"base_us": 9000, "sequence_us": 40}},
     "control": {"base_us": 8900, "sequence_us": 40}}

``control`` is what a step costs a contiguous control; without it, controls are not judged. A stated model is
a projection like a calibration of another device, unless it names the device it is used on.
"""

from __future__ import annotations

from dataclasses import astuple, fields
from typing import TYPE_CHECKING, Protocol

import msgspec
import numpy as np

from kvsuite.errors import ConfigError
from kvsuite.sweep.clock import StepCosts

if TYPE_CHECKING:
    from pathlib import Path

_COSTS = tuple(field.name for field in fields(StepCosts))
_LARGEST_US = 1e12
"""Eleven days for one thing that a step does: sums over any trace stay numbers."""
_LARGEST_SPREAD = 1.0
_OF_CONTROL = 0
"""Stands for a block size in the seed of a control's draws."""


class CostSource(Protocol):
    """What a decision needs of a calibration."""

    @property
    def device(self) -> str:
        """The model name of the device that was measured."""

    @property
    def kernel(self) -> str:
        """The attention kernel: its name, and a hash over its source."""

    def costs(self, block_size: int) -> StepCosts:
        """Return the median costs at a block size.

        **Raises:** `ConfigError` for one that was not measured.
        """

    def draw(self, block_size: int, repeat: int) -> StepCosts:
        """Return costs drawn from their spread: the same for the same repeat; the medians for repeat 0."""

    def draw_control(self, repeat: int) -> StepCosts:
        """Return what a step costs a contiguous control, drawn likewise: no table entry and no block costs.

        **Raises:** `ConfigError` where that is not known.
        """


class StatedCosts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A cost model as it is written down: costs by block size, and one relative spread of them all."""

    device: str
    kernel: str
    blocks: dict[int, StepCosts]
    spread: float = 0.0
    """Standard deviation of the logarithm of a draw's factor, which is the same for all costs of a step."""
    control: StepCosts | None = None
    """What a step costs a contiguous control."""

    def __post_init__(self) -> None:
        if not self.blocks or self.spread < 0 or not self.device or not self.kernel:
            raise ValueError("expected a device, a kernel, one block size or more, and a spread of 0 or more")
        if min(self.blocks) < 1:
            raise ValueError(f"block size {min(self.blocks)}: expected a size of 1 or more")
        if self.control is not None and (self.control.table_entry_us or self.control.block_us):
            raise ValueError(
                "control: expected no table_entry_us and no block_us, as a contiguous sequence has neither "
                f"table nor blocks; found {self.control.table_entry_us:g} and {self.control.block_us:g}"
            )
        if self.spread > _LARGEST_SPREAD:
            raise ValueError(f"a spread of {self.spread:g}: expected {_LARGEST_SPREAD:g} or less")
        stated = [*self.blocks.values(), *([] if self.control is None else [self.control])]
        largest_us = max(max(astuple(costs)) for costs in stated)
        if largest_us > _LARGEST_US:
            raise ValueError(f"a cost of {largest_us:g} us: expected {_LARGEST_US:g} or less")

    def costs(self, block_size: int) -> StepCosts:
        """Return the stated costs; see `CostSource`."""
        try:
            return self.blocks[block_size]
        except KeyError:
            known = ", ".join(map(str, sorted(self.blocks)))
            raise ConfigError(
                f"no costs for blocks of {block_size} tokens: there are some for {known}; "
                "give --sizes among them, or calibrate the others"
            ) from None

    def draw(self, block_size: int, repeat: int) -> StepCosts:
        """Return the stated costs times a seeded factor; see `CostSource`."""
        return self._drawn(self.costs(block_size), repeat, block_size)

    def draw_control(self, repeat: int) -> StepCosts:
        """Return the stated costs of a control times a seeded factor; see `CostSource`."""
        if self.control is None:
            raise ConfigError(
                'no costs of a contiguous control are stated: give them as "control" beside "blocks"'
            )
        return self._drawn(self.control, repeat, _OF_CONTROL)

    def _drawn(self, costs: StepCosts, repeat: int, stream: int) -> StepCosts:
        if not repeat or not self.spread:
            return costs
        rng = np.random.default_rng([repeat, stream])
        factor = float(np.exp(self.spread * rng.standard_normal()))
        return StepCosts(*(factor * cost for cost in astuple(costs)))


class _Named(msgspec.Struct):
    """The names of the costs in a file: a cost that is called otherwise would count as none."""

    blocks: dict[str, dict[str, msgspec.Raw]]
    control: dict[str, msgspec.Raw] = {}

    def __post_init__(self) -> None:
        stated = {f"block size {size}": costs for size, costs in self.blocks.items()}
        for where, costs in {**stated, "control": self.control}.items():
            if unknown := [name for name in costs if name not in _COSTS]:
                raise ValueError(f"{where}: {unknown[0]!r} is none of {', '.join(_COSTS)}")


def read_costs(path: Path) -> CostSource:
    """Return the costs stated in a file.

    **Raises:** `ConfigError` for a file that cannot be read or holds something else.
    """
    try:
        data = path.read_bytes()
        stated = msgspec.json.decode(data, type=StatedCosts)
        msgspec.json.decode(data, type=_Named)
    except OSError as error:
        raise ConfigError(f"{path}: cannot read the calibration ({error.strerror or error})") from error
    except (msgspec.MsgspecError, ConfigError) as error:
        raise ConfigError(f"{path}: no calibration, {error}") from error
    return stated
