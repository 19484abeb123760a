"""What plain reading reaches on this processor: the ceiling that a kernel's bandwidth is a share of."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import TYPE_CHECKING

from kvsuite.device.attention.compiler import find_compiler
from kvsuite.errors import ConfigError

if TYPE_CHECKING:
    import torch

    from kvsuite.device.attention.compiler import Compiler

SOURCE = Path(__file__).with_name("read.c")
_UNIT_BYTES = 512


class PlainRead:
    """Reads memory once, front to back, on one thread.

    **Raises:** `KernelUnavailable` without a compiler.
    """

    def __init__(self, compiler: Compiler | None = None) -> None:
        library = (find_compiler() if compiler is None else compiler).load(SOURCE)
        self._read = library.kvsuite_read
        self._read.argtypes = [ctypes.c_void_p, ctypes.c_int64]
        self._read.restype = ctypes.c_uint64

    def __call__(self, buffer: torch.Tensor) -> int:
        """Return the sum of a CPU tensor's bytes taken as 64-bit words, modulo 2^64.

        **Raises:** `ConfigError` unless it is contiguous and a multiple of 512 bytes.
        """
        if buffer.device.type != "cpu" or not buffer.is_contiguous() or buffer.nbytes % _UNIT_BYTES:
            raise ConfigError(
                f"reading {buffer.nbytes} bytes: expected contiguous CPU memory in units of 512 bytes"
            )
        total: int = self._read(buffer.data_ptr(), buffer.nbytes // 8)
        return total
