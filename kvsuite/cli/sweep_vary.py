"""`kvsuite sweep --vary`: a factor that options differ in instead of block size, and its values."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from kvsuite.cli.setup import engine_in_full, parse_engine_options
from kvsuite.cli.sizes import parse_pool
from kvsuite.engine.registry import check_known
from kvsuite.errors import ConfigError
from kvsuite.sweep.cells import CONTROLS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvsuite.sweep.cells import Cell

Scalar = int | str | bool


@dataclass(frozen=True, slots=True)
class Vary:
    """A factor that options differ in instead of block size, and its values."""

    name: str
    values: tuple[Scalar, ...]

    def __str__(self) -> str:
        return f"{self.name}={','.join(map(_text, self.values))}"

    def cells(self, cell: Cell) -> Iterator[tuple[str, Cell]]:
        """Yield one cell a value, each with its name.

        **Raises:** `ConfigError` for a value that the factor cannot have.
        """
        for value in self.values:
            yield f"{self.name}={_text(value)}", _varied(cell, self.name, value)


def parse_vary(text: str) -> Vary:
    """Return the factor written as ``NAME=V1,V2``.

    **Raises:** `ConfigError` for any other text, and for fewer than two values or one that comes twice.

    >>> str(parse_vary("prefix-cache=true,false"))
    'prefix-cache=true,false'
    """
    name, _, values = text.partition("=")
    parts = [part.strip() for part in values.split(",")]
    if not name or len(parts) < 2 or not all(parts) or len(set(parts)) != len(parts):
        raise ConfigError(
            f"--vary {text!r}: expected NAME=V1,V2 with two values or more, such as prefix-cache=true,false"
        )
    return Vary(name, tuple(parse_engine_options([f"{name}={part}"])[name] for part in parts))


def _varied(cell: Cell, name: str, value: Scalar) -> Cell:
    match name:
        case "prefix-cache" if isinstance(value, bool):
            return replace(cell, prefix_cache=value)
        case "watermark-blocks" if type(value) is int:
            return replace(cell, watermark_blocks=value)
        case "max-sequences" if type(value) is int:
            return replace(cell, scheduler=replace(cell.scheduler, max_sequences=value))
        case "max-step-tokens" if type(value) is int:
            return replace(cell, scheduler=replace(cell.scheduler, max_step_tokens=value))
        case "pool":
            pool = parse_pool(str(value))
            if pool.unit == "bytes":
                return replace(cell, pool_bytes=pool.count)
        case "pool-policy" if isinstance(value, str) and value not in CONTROLS:
            engine = engine_in_full(value)
            check_known(engine)
            return replace(cell, engine=engine)
        case _ if name not in _EXPECTED:
            return replace(cell, options=tuple(sorted({**dict(cell.options), name: value}.items())))
    raise ConfigError(f"--vary {name}: {_text(value)!r} is none of its values: expected {_EXPECTED[name]}")


_EXPECTED = {
    "prefix-cache": "true or false",
    "watermark-blocks": "whole numbers",
    "max-sequences": "whole numbers",
    "max-step-tokens": "whole numbers",
    "pool": "sizes in bytes, such as 20GiB",
    "pool-policy": "paging engines, such as reference or reference-eager",
}


def _text(value: Scalar) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
