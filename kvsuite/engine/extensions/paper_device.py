"""A device on paper: what a start-up profile would have read, and what of it an engine may take.

Options of `ObservedEngine`, in bytes: ``device_bytes`` (a list such as ``"1000,900"`` for several ranks;
without it, one whose budget is twice what is needed), ``weights_bytes``, ``activation_bytes``,
``graphs_bytes``, ``other_bytes``, ``neighbour_bytes`` (of other processes) and ``draft_block_bytes`` (what
each block costs in a draft model's pool). ``memory_percent`` of the ``total`` device, or with
``fraction_of="free"`` of what is left beside all of these, goes to the pool::

    total:  pool <= percent * device - weights - activation - graphs - other
    free:   pool <= percent * (device - neighbour - weights - activation - graphs - other)

With ``sequences``, the pool is no larger than that many sequences of ``max_model_tokens`` need.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from kvsuite.errors import ConfigError

if TYPE_CHECKING:
    from kvsuite.engine.config import EngineConfig

_PROFILE = {
    "weights_bytes": 1 << 20,
    "activation_bytes": 1 << 16,
    "graphs_bytes": 1 << 15,
    "other_bytes": 1 << 14,
}
_COUNTS = {**_PROFILE, "neighbour_bytes": 0, "draft_block_bytes": 0, "memory_percent": 100, "sequences": 0}


@dataclass(frozen=True, slots=True)
class PaperDevice:
    """What a start-up profile would have read, and what was asked of it; see the head of this module."""

    rank_bytes: tuple[int, ...]
    weights_bytes: int
    activation_bytes: int
    graphs_bytes: int
    other_bytes: int
    neighbour_bytes: int
    draft_block_bytes: int
    memory_percent: int
    sequences: int
    fraction_of: str

    @property
    def own_bytes(self) -> int:
        """What the process holds beside its pool."""
        return self.weights_bytes + self.activation_bytes + self.graphs_bytes + self.other_bytes


def paper_device(config: EngineConfig) -> tuple[PaperDevice, dict[str, int | str | bool]]:
    """Return the device that the options describe, and the options left for the reference engine."""
    rest = dict(config.options)
    ranks, fraction_of = rest.pop("device_bytes", None), rest.pop("fraction_of", "total")
    counts = {name: _whole(name, rest.pop(name, default)) for name, default in _COUNTS.items()}
    unknown = sorted(set(rest) - {"null_blocks"})
    if unknown:
        known = ", ".join(["null_blocks", "device_bytes", "fraction_of", *_COUNTS])
        raise ConfigError(f"observed engine: unknown option {unknown[0]!r}, expected one of {known}")
    if fraction_of not in {"total", "free"}:
        raise ConfigError(f"observed engine: fraction_of is {fraction_of!r}, expected total or free")
    percent = counts["memory_percent"]
    if not 1 <= percent <= 100:
        raise ConfigError(f"observed engine: memory_percent is {percent}, expected 1 to 100")
    device = PaperDevice((), fraction_of=str(fraction_of), **counts)
    sizes = (_roomy(device, config),) if ranks is None else _rank_bytes(ranks)
    for size in sizes:
        budget_bytes = percent * size // 100 if fraction_of == "total" else 0
        if budget_bytes + device.neighbour_bytes > size:
            raise ConfigError(
                f"observed engine: a budget of {budget_bytes} bytes does not fit beside a neighbour's "
                f"{device.neighbour_bytes} on a device of {size}"
            )
    return replace(device, rank_bytes=sizes), rest


def _roomy(device: PaperDevice, config: EngineConfig) -> int:
    """Return the size of a device whose budget is twice the pool asked for and all that stands beside it."""
    priced_bytes = config.layout.block_bytes(config.block_size) + device.draft_block_bytes
    budget_bytes = 2 * (config.num_blocks * priced_bytes + device.own_bytes)
    beside_bytes = device.neighbour_bytes + device.own_bytes if device.fraction_of == "free" else 0
    return beside_bytes + -(-100 * budget_bytes // device.memory_percent)


def _rank_bytes(value: int | str | bool) -> tuple[int, ...]:
    parts = str(value).split(",")
    if not all(part.isdecimal() for part in parts):
        raise ConfigError(
            f"observed engine: device_bytes is {value!r}, expected a whole number of bytes for each rank, "
            'such as "1000,900"'
        )
    return tuple(map(int, parts))


def _whole(name: str, value: int | str | bool) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ConfigError(f"observed engine: {name} is {value!r}, expected a whole number of bytes or blocks")
    return value
