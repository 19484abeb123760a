"""What vLLM's block manager asks of torch, where it is not installed: types of elements, with their size."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import ModuleType

ITEM_BYTES = {
    "float64": 8,
    "float32": 4,
    "float": 4,
    "bfloat16": 2,
    "float16": 2,
    "half": 2,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "int64": 8,
    "long": 8,
    "int32": 4,
    "int": 4,
    "int16": 2,
    "int8": 1,
    "uint8": 1,
    "bool": 1,
}
VERSION = "0+stand-in"


class dtype:  # noqa: N801  (torch's own name)
    """A type of elements."""

    def __init__(self, name: str, itemsize: int) -> None:
        self.name = name
        self.itemsize = itemsize

    def __repr__(self) -> str:
        return f"torch.{self.name}"


def fill_torch(module: ModuleType) -> None:
    """Give a module the names of torch that are data, not functions."""
    names: dict[str, Any] = {name: dtype(name, size) for name, size in ITEM_BYTES.items()}
    vars(module).update(names, dtype=dtype, __version__=VERSION)
