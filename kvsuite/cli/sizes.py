"""Sizes as people write them: pools, durations, lists of block sizes."""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal

from kvsuite.errors import ConfigError
from kvsuite.sweep.slo import Slo

_BYTE_UNITS = {
    "": 1,
    "B": 1,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "TiB": 2**40,
    "kB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
}
_TIME_UNITS_US = {"us": 1, "ms": 1_000, "s": 1_000_000}
_LONGEST_US = 2**53
"""285 years: up to it a float of microseconds is exact."""
_BUDGETS = ("ttft", "itl")
_QUANTITY = re.compile(r"(?P<number>[0-9]+(?:\.[0-9]+)?)\s*(?P<unit>[A-Za-z]*)")


@dataclass(frozen=True, slots=True)
class PoolSize:
    """A pool as it was asked for: in bytes, or in blocks of the engine's block size."""

    count: int
    unit: str
    """``bytes`` or ``blocks``."""

    def __str__(self) -> str:
        return f"{self.count} {self.unit}"


def parse_pool(text: str) -> PoolSize:
    """Return the pool size written as ``20GiB``, ``512MiB``, ``4096 blocks`` or plain bytes.

    **Raises:** `ConfigError` for any other text, a fraction of a byte or block, and a size of zero.

    >>> parse_pool("1.5KiB"), parse_pool("4096 blocks")
    (PoolSize(count=1536, unit='bytes'), PoolSize(count=4096, unit='blocks'))
    """
    number, unit = _split(text, "pool size", "20GiB, 512MiB, 4096 blocks or a number of bytes")
    if unit in {"block", "blocks"}:
        count, kind = number, "blocks"
    elif unit in _BYTE_UNITS:
        count, kind = number * _BYTE_UNITS[unit], "bytes"
    else:
        raise ConfigError(
            f"pool size {text!r} has the unknown unit {unit!r}: expected blocks or one of "
            f"{', '.join(name for name in _BYTE_UNITS if name)}"
        )
    if count != int(count) or count < 1:
        raise ConfigError(f"pool size {text!r} is {count} {kind}: expected a whole number of 1 or more")
    return PoolSize(int(count), kind)


def parse_pools(text: str) -> tuple[PoolSize, ...]:
    """Return the pool sizes in a comma-separated list, in the order given.

    **Raises:** `ConfigError` as `parse_pool`, for each.
    """
    return tuple(parse_pool(part) for part in text.split(","))


def parse_duration_us(text: str) -> int:
    """Return the microseconds written as ``50ms``, ``0.2s`` or ``250us``; a unit is required.

    **Raises:** `ConfigError` for any other text, a fraction of a microsecond, zero, and more than 2**53 us.
    """
    number, unit = _split(text, "duration", "50ms, 0.2s or 250us")
    if unit not in _TIME_UNITS_US:
        raise ConfigError(f"duration {text!r} has no known unit: expected 50ms, 0.2s or 250us")
    duration_us = number * _TIME_UNITS_US[unit]
    if duration_us > _LONGEST_US:
        raise ConfigError(f"duration {text!r} is longer than {_LONGEST_US} us: give a shorter one")
    if duration_us != int(duration_us) or duration_us < 1:
        raise ConfigError(f"duration {text!r} is {duration_us} us: expected a whole number of 1 or more")
    return int(duration_us)


def parse_block_sizes(text: str) -> tuple[int, ...]:
    """Return the block sizes in a comma-separated list, in the order given.

    **Raises:** `ConfigError` for an empty list, anything but whole numbers of 1 or more, and a repetition.
    """
    parts = [part.strip() for part in text.split(",")]
    if not all(re.fullmatch("[0-9]+", part) and int(part) > 0 for part in parts):
        raise ConfigError(f"block sizes {text!r}: expected whole numbers of 1 or more, such as 8,16,32")
    sizes = tuple(int(part) for part in parts)
    if len(set(sizes)) != len(sizes):
        raise ConfigError(f"block sizes {text!r} name a size twice: give each once")
    return sizes


def parse_slo(text: str) -> Slo:
    """Return the SLO written as ``ttft=500ms,itl=50ms``, both budgets in any order.

    **Raises:** `ConfigError` for any other text.

    >>> parse_slo("itl=50ms,ttft=0.5s")
    Slo(ttft_us=500000, itl_us=50000)
    """
    pairs = [part.partition("=")[::2] for part in text.split(",")]
    names = [name.strip() for name, _ in pairs]
    if sorted(names) != sorted(_BUDGETS):
        raise ConfigError(f"SLO {text!r}: expected a budget for ttft and one for itl: ttft=500ms,itl=50ms")
    budgets = {name: parse_duration_us(value) for name, (_, value) in zip(names, pairs, strict=True)}
    return Slo(budgets["ttft"], budgets["itl"])


def format_bytes(count: int) -> str:
    """Return a byte count in the largest binary unit that leaves at least 1, with one decimal.

    >>> format_bytes(1023), format_bytes(1536), format_bytes(20 * 2**30)
    ('1,023 B', '1.5 KiB', '20.0 GiB')
    """
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        if abs(count) >= _BYTE_UNITS[unit]:
            return f"{count / _BYTE_UNITS[unit]:,.1f} {unit}"
    return f"{count:,} B"


def _split(text: str, what: str, expected: str) -> tuple[Decimal, str]:
    match = _QUANTITY.fullmatch(text.strip())
    if match is None:
        raise ConfigError(f"{what} {text!r} cannot be read: expected {expected}")
    return Decimal(match["number"]), match["unit"]
