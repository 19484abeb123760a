"""The one signature of decode attention.

    query         [sequences, query_heads, head_dim]  the cache's dtype, or float32
    kv.k, kv.v    [blocks, block_size, kv_heads, dim]  views; a token's heads lie together
    block_tables  int32 [sequences, width]            entries past a sequence's last block are not read
    lengths       int32 [sequences]                   tokens attended to, the new one included
    -> out        [sequences, query_heads, head_dim]  the query's dtype

Query head ``h`` reads KV head ``h // (query_heads // kv_heads)``. Without a table (``None``) block ``s`` is
sequence ``s``, whole: the contiguous control, the same code without the look-up.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch

from kvsuite.cache.layout import Dtype
from kvsuite.errors import ConfigError, UnsupportedBlockSize

if TYPE_CHECKING:
    from kvsuite.device.slots import KVSlots

TORCH_DTYPES = {
    Dtype.FLOAT32: torch.float32,
    Dtype.FLOAT16: torch.float16,
    Dtype.BFLOAT16: torch.bfloat16,
}
_DTYPES = {dtype: name for name, dtype in TORCH_DTYPES.items()}


@dataclass(frozen=True, slots=True)
class KVView:
    """Keys and values of one layer, ``[num_blocks, block_size, kv_heads, head_dim]`` each.

    Blocks and tokens may lie any distance apart, the same for both; heads and elements lie together.

    **Raises:** `ConfigError` for shapes or strides that are not so.

    >>> from kvsuite.cache.layout import model_layout
    >>> from kvsuite.device.slots import KVSlots
    >>> view = KVView.of_slots(KVSlots(model_layout("tiny"), num_blocks=4, block_size=16), layer=1)
    >>> view.block_size, view.k.stride()
    (16, (1024, 16, 8, 1))
    """

    k: torch.Tensor
    v: torch.Tensor

    def __post_init__(self) -> None:
        k, v = self.k, self.v
        alike = k.shape == v.shape and k.stride() == v.stride() and k.dtype == v.dtype
        if k.ndim != 4 or not alike or k.stride()[2:] != (k.shape[3], 1):
            raise ConfigError(
                f"keys {tuple(k.shape)} strided {k.stride()} {k.dtype} and values {tuple(v.shape)} strided "
                f"{v.stride()} {v.dtype}: expected two alike, [blocks, block size, heads, head dim], with "
                "heads and elements together"
            )

    @classmethod
    def of_slots(cls, slots: KVSlots, layer: int) -> KVView:
        """Return the keys and values of one layer of a pool of slots."""
        return cls(slots.tensor(layer, "k"), slots.tensor(layer, "v"))

    @property
    def num_blocks(self) -> int:
        """Blocks."""
        return self.k.shape[0]

    @property
    def block_size(self) -> int:
        """Tokens of a block."""
        return self.k.shape[1]

    @property
    def kv_heads(self) -> int:
        """KV heads."""
        return self.k.shape[2]

    @property
    def head_dim(self) -> int:
        """Elements of a head."""
        return self.k.shape[3]


@dataclass(frozen=True, slots=True)
class BlockSizes:
    """The block sizes that a kernel claims: multiples of ``multiple_of`` up to ``largest``, where it has one.

    >>> 48 in BlockSizes(), 48 in BlockSizes(powers_of_two=True), 512 in BlockSizes(largest=256)
    (True, False, False)
    >>> str(BlockSizes(powers_of_two=True, largest=256)), str(BlockSizes(multiple_of=256))
    ('a power of two up to 256', 'a multiple of 256')
    """

    multiple_of: int = 1
    largest: int | None = None
    powers_of_two: bool = False

    def __contains__(self, block_size: int) -> bool:
        fits = block_size >= 1 and block_size % self.multiple_of == 0
        power = not self.powers_of_two or block_size & (block_size - 1) == 0
        return fits and power and (self.largest is None or block_size <= self.largest)

    def __str__(self) -> str:
        kind = "a power of two" if self.powers_of_two else "any size"
        kind = kind if self.multiple_of == 1 else f"a multiple of {self.multiple_of}"
        return kind if self.largest is None else f"{kind} up to {self.largest}"


class DecodeAttention(Protocol):
    """A kernel of decode attention."""

    @property
    def name(self) -> str:
        """What reports call it."""
        ...

    @property
    def dtypes(self) -> tuple[Dtype, ...]:
        """Cache dtypes it takes."""
        ...

    @property
    def block_sizes(self) -> BlockSizes:
        """Block sizes it takes."""
        ...

    @property
    def latency_verdict(self) -> bool:
        """Whether its time may decide about a block size; not where other work hides what a size costs."""
        ...

    @property
    def source_hash(self) -> str:
        """Hex digits that change when what runs does: source, compiler, flags, library, processor."""
        ...

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
        """Return the attention of each sequence's query over its first ``lengths`` tokens."""
        ...


def dtype_of(tensor: torch.Tensor) -> Dtype:
    """Return the cache dtype of a tensor.

    **Raises:** `ConfigError` for another one than float32, float16 and bfloat16.
    """
    try:
        return _DTYPES[tensor.dtype]
    except KeyError:
        known = ", ".join(dtype.value for dtype in TORCH_DTYPES)
        raise ConfigError(f"attention over {tensor.dtype}: expected one of {known}") from None


def check_call(
    kernel: DecodeAttention,
    query: torch.Tensor,
    kv: KVView,
    block_tables: torch.Tensor | None,
    lengths: torch.Tensor,
    block_size: int,
) -> None:
    """Refuse a call that no kernel could serve, or not this one.

    **Raises:** `UnsupportedBlockSize` for a block size the kernel does not claim, `ConfigError` else. What
    the tables and lengths hold is not looked at here.
    """
    if block_size != kv.block_size:
        raise ConfigError(f"block size {block_size} was given for a pool of blocks of {kv.block_size} tokens")
    if block_tables is not None and block_size not in kernel.block_sizes:
        raise UnsupportedBlockSize(
            f"{kernel.name} takes {kernel.block_sizes}, not blocks of {block_size} tokens"
        )
    if dtype_of(kv.k) not in kernel.dtypes:
        taken = ", ".join(dtype.value for dtype in kernel.dtypes)
        raise ConfigError(f"{kernel.name} takes {taken}, not {kv.k.dtype}")
    sequences = len(lengths)
    if query.ndim != 3 or query.shape[::2] != (sequences, kv.head_dim) or query.shape[1] % kv.kv_heads:
        raise ConfigError(
            f"query {tuple(query.shape)}: expected [{sequences} sequences, a multiple of {kv.kv_heads} "
            f"heads, {kv.head_dim}]"
        )
    if query.dtype not in (torch.float32, kv.k.dtype):
        raise ConfigError(
            f"a query of {query.dtype} over a cache of {kv.k.dtype}: give it float32 or the cache's"
        )
    for what, given, shape in (
        ("block_tables", block_tables, (sequences, -1)),
        ("lengths", lengths, (sequences,)),
    ):
        if given is None:
            continue
        fits = given.ndim == len(shape) and given.shape[0] == sequences and given.is_contiguous()
        if given.dtype != torch.int32 or not fits:
            raise ConfigError(
                f"{what} {given.dtype} {tuple(given.shape)}: expected int32 of {sequences} sequences, "
                "contiguous"
            )
    if block_tables is None and kv.num_blocks < sequences:
        raise ConfigError(
            f"{sequences} sequences without a table, but {kv.num_blocks} blocks: one each is needed"
        )
