"""The CPU's kernel: ``decode.c``, which reads blocks in place through the table, on one thread.

Two builds of it. ``c-prefetch`` asks for rows before it needs them and hides most of what small blocks cost;
``c-plain`` leaves that to the processor and shows it. Their outputs are the same bits, and so are those of
the contiguous control (no table): sums are float32 in an order that no block size and no table changes.
"""

from __future__ import annotations

import ctypes
import functools
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from kvsuite.cache.layout import Dtype
from kvsuite.device.attention.call import BlockSizes, KVView, check_call, dtype_of
from kvsuite.device.attention.compiler import find_compiler
from kvsuite.errors import BlockError, ConfigError, DeviceError

if TYPE_CHECKING:
    import numpy.typing as npt
    import torch

    from kvsuite.device.attention.compiler import Compiler

SOURCE = Path(__file__).with_name("decode.c")
_NUMPY_DTYPES = {"float32": Dtype.FLOAT32, "float16": Dtype.FLOAT16, "uint16": Dtype.BFLOAT16}
_DONE, _NO_MEMORY, _BAD_LENGTH, _BAD_BLOCK = range(4)


class _Call(ctypes.Structure):
    """``struct call`` of ``decode.c``."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("query", "keys", "values", "tables", "lengths", "out")),
        *((name, ctypes.c_int64) for name in ("sequences", "kv_heads", "num_blocks", "block_size")),
        *((name, ctypes.c_int64) for name in ("table_width", "block_stride", "token_stride")),
        *((name, ctypes.c_int64) for name in ("fault_sequence", "fault_entry")),
        ("scale", ctypes.c_float),
    )


class CKernel:
    """Decode attention on the CPU; safe to call from several threads at once. Head dims are multiples of 8.

    **Raises:** `KernelUnavailable` where there is no compiler, or on first use it does not build the kernel.
    Of calls: `ConfigError` for what it does not take or a length outside the table, `BlockError` for a table
    entry in use that is no block of the pool, `DeviceError` for tensors elsewhere.
    """

    dtypes = (Dtype.FLOAT32, Dtype.BFLOAT16, Dtype.FLOAT16)
    block_sizes = BlockSizes()
    latency_verdict = True

    def __init__(self, *, prefetch: bool = True, compiler: Compiler | None = None) -> None:
        self.name = "c-prefetch" if prefetch else "c-plain"
        self._compiler = find_compiler() if compiler is None else compiler
        self._prefetch = f"PREFETCH={int(prefetch)}"
        self.source_hash = self._compiler.identity(SOURCE, (self._prefetch,))
        self._entry = functools.cache(self._build)

    def __call__(
        self,
        query: torch.Tensor,
        kv: KVView,
        block_tables: torch.Tensor | None,
        lengths: torch.Tensor,
        *,
        block_size: int,
        scale: float,
    ) -> torch.Tensor:
        """Return ``[sequences, query_heads, head_dim]`` as `kvsuite.device.attention.call` says."""
        check_call(self, query, kv, block_tables, lengths, block_size)
        if {each.device.type for each in (query, kv.k, lengths)} != {"cpu"}:
            raise DeviceError(f"{self.name} runs on the CPU, but the query is on {query.device}")
        asked = query.float().contiguous()
        out = asked.new_empty(asked.shape)
        width = 0 if block_tables is None else block_tables.shape[1]
        tables = None if block_tables is None else block_tables.data_ptr()
        pointers = (
            asked.data_ptr(),
            kv.k.data_ptr(),
            kv.v.data_ptr(),
            tables,
            lengths.data_ptr(),
            out.data_ptr(),
        )
        shape = (len(lengths), kv.kv_heads, kv.num_blocks, kv.block_size, width, *kv.k.stride()[:2])
        self._run(dtype_of(kv.k), kv.head_dim, query.shape[1], _Call(*pointers, *shape, 0, 0, scale))
        return out.to(query.dtype)

    def decode_arrays(
        self,
        query: npt.NDArray[np.float32],
        keys: npt.NDArray[Any],
        values: npt.NDArray[Any],
        block_tables: npt.NDArray[np.int32] | None,
        lengths: npt.NDArray[np.int32],
        *,
        scale: float,
    ) -> npt.NDArray[np.float32]:
        """Return the same for NumPy arrays, which need no torch; bfloat16 is given as its bits, uint16."""
        num_blocks, block_size, kv_heads, head_dim = keys.shape
        item = keys.itemsize
        packed = keys.strides[2:] == (head_dim * item, item)
        alike = (keys.shape, keys.strides, keys.dtype) == (values.shape, values.strides, values.dtype)
        if keys.dtype.name not in _NUMPY_DTYPES or not packed or not alike:
            raise ConfigError(
                f"keys and values of {keys.dtype}: expected two alike, with heads and elements together"
            )
        if query.shape[::2] != (len(lengths), head_dim) or query.shape[1] % kv_heads:
            raise ConfigError(
                f"query {query.shape} does not fit {len(lengths)} sequences and keys {keys.shape}"
            )
        asked = np.ascontiguousarray(query, np.float32)
        held = np.ascontiguousarray(lengths, np.int32)
        tables = None if block_tables is None else np.ascontiguousarray(block_tables, np.int32)
        if held.ndim != 1 or (tables is not None and (tables.ndim != 2 or len(tables) != len(held))):
            raise ConfigError(
                f"lengths {held.shape}: expected one a sequence, and a row of the table for each"
            )
        out = np.empty_like(asked)
        pointers = (asked.ctypes.data, keys.ctypes.data, values.ctypes.data)
        pointers_after = (None if tables is None else tables.ctypes.data, held.ctypes.data, out.ctypes.data)
        width = 0 if tables is None else tables.shape[1]
        strides = (keys.strides[0] // item, keys.strides[1] // item)
        shape = (len(held), kv_heads, num_blocks, block_size, width, *strides)
        call = _Call(*pointers, *pointers_after, *shape, 0, 0, scale)
        self._run(_NUMPY_DTYPES[keys.dtype.name], head_dim, query.shape[1], call)
        return out

    def _run(self, dtype: Dtype, head_dim: int, query_heads: int, call: _Call) -> None:
        status = self._entry(dtype, head_dim, query_heads // call.kv_heads)(ctypes.byref(call))
        if status == _DONE:
            return
        sequence, entry = call.fault_sequence, call.fault_entry
        if status == _NO_MEMORY:
            raise DeviceError(f"{self.name}: no memory for the sums of {query_heads} heads")
        if status == _BAD_LENGTH:
            tokens = call.block_size * (call.table_width if call.tables else 1)
            raise ConfigError(
                f"the length of sequence {sequence} is not from 1 to the {tokens} tokens it has room for"
            )
        raise BlockError(
            f"entry {entry} of the table of sequence {sequence} is no block of the pool, which has "
            f"{call.num_blocks}"
        )

    def _build(self, dtype: Dtype, head_dim: int, group: int) -> Any:
        if head_dim % 8:
            raise ConfigError(f"{self.name} takes head dims that are multiples of 8, not {head_dim}")
        element = f"ELEMENT_{dtype.name}"
        library = self._compiler.load(
            SOURCE, (self._prefetch, element, f"HEAD_DIM={head_dim}", f"GROUP={group}")
        )
        entry = library.kvsuite_decode
        entry.argtypes = [ctypes.POINTER(_Call)]
        entry.restype = ctypes.c_int
        return entry
