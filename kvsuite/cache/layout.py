"""Bytes of a KV cache: which tensors one token fills, on one tensor-parallel rank.

    token  =  layers x [ stream k: heads x dim x width (+ scales) | stream v: ... ]
    block  =  block_size x token, rounded up to the block alignment; the rest is pad

Formula: ``faults.md`` BYTES, after vLLM's ``AttentionSpec.page_size_bytes`` (0.32.0): each stream at its
own width, ``heads_rank = max(1, ceil(H_kv / tp))``.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace

from kvsuite.errors import ConfigError

SCALE_BYTES = 4


class Dtype(enum.Enum):
    """Element type of the cache, by torch's name."""

    FLOAT32 = "float32"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"
    FLOAT8_E4M3 = "float8_e4m3fn"

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return {"float32": 4, "float16": 2, "bfloat16": 2, "float8_e4m3fn": 1}[self.value]

    @classmethod
    def parse(cls, text: str) -> Dtype:
        """Return the dtype named ``text``; the short names fp32, fp16, bf16 and fp8 serve too.

        **Raises:** `ConfigError` for any other name.
        """
        short = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16", "fp8": "float8_e4m3fn"}
        try:
            return cls(short.get(text, text))
        except ValueError:
            known = ", ".join([*short, *(d.value for d in cls)])
            raise ConfigError(f"unknown dtype {text!r}: expected one of {known}") from None


@dataclass(frozen=True, slots=True)
class Stream:
    """One tensor a layer keeps a token in: ``heads`` vectors of ``dim`` elements, over the whole model.

    ``replicated`` streams (an MLA latent) are whole on every rank; others are split by heads. A stream with a
    ``dtype`` of its own (a one-byte index beside a latent) keeps it whatever the layout's is.
    """

    name: str
    heads: int
    dim: int
    replicated: bool = False
    dtype: Dtype | None = None


@dataclass(frozen=True, slots=True)
class Layout:
    """The shape of a cache on one rank.

    ``scaled`` adds one float32 scale a head and token to each stream (per-token-head fp8 scales).

    >>> layout = model_layout("llama-3.1-8b")
    >>> layout.bytes_per_token, layout.block_bytes(16)
    (131072, 2097152)
    """

    name: str
    num_layers: int
    streams: tuple[Stream, ...]
    dtype: Dtype
    tp_size: int = 1
    tp_rank: int = 0
    scaled: bool = False
    block_alignment_bytes: int = 1

    def __post_init__(self) -> None:
        if self.num_layers < 1 or not self.streams:
            found = f"{self.num_layers} layers and {len(self.streams)} streams"
            raise ConfigError(f"layout {self.name} has {found}: at least one of each is needed")
        for stream in self.streams:
            if stream.heads < 1 or stream.dim < 1:
                raise ConfigError(
                    f"layout {self.name}: stream {stream} needs at least one head of one element"
                )
        if not 0 <= self.tp_rank < self.tp_size:
            raise ConfigError(f"layout {self.name}: rank {self.tp_rank} is not among {self.tp_size} ranks")
        if self.block_alignment_bytes < 1:
            raise ConfigError(
                f"layout {self.name}: block alignment {self.block_alignment_bytes} is not positive"
            )

    def heads_on_rank(self, stream: Stream) -> int:
        """Return how many heads of ``stream`` this rank holds."""
        return stream.heads if stream.replicated else max(1, -(-stream.heads // self.tp_size))

    def dtype_of(self, stream: Stream) -> Dtype:
        """Return the element type of ``stream``: its own, or the layout's."""
        return self.dtype if stream.dtype is None else stream.dtype

    def head_replication(self, stream: Stream) -> float:
        """Return copies of each head over all ranks: above 1 once there are more ranks than heads."""
        return self.tp_size * self.heads_on_rank(stream) / stream.heads

    @property
    def bytes_per_token(self) -> int:
        """Bytes one token fills on this rank, scales included, over all layers."""
        return self.num_layers * sum(self._stream_bytes(stream) for stream in self.streams)

    def block_bytes(self, block_size: int) -> int:
        """Return the bytes of one block of ``block_size`` tokens, padding included.

        **Raises:** `ConfigError` for a block size below 1.
        """
        if block_size < 1:
            raise ConfigError(f"block size {block_size} is not positive: give a size of 1 token or more")
        unit = self.block_alignment_bytes
        return -(-block_size * self.bytes_per_token // unit) * unit

    def pad_bytes_per_block(self, block_size: int) -> int:
        """Return the bytes at the end of a block that no token can use."""
        return self.block_bytes(block_size) - block_size * self.bytes_per_token

    def blocks_in(self, pool_bytes: int, block_size: int) -> int:
        """Return how many whole blocks ``pool_bytes`` hold."""
        return pool_bytes // self.block_bytes(block_size)

    def with_(self, *, dtype: Dtype | None = None, num_layers: int | None = None) -> Layout:
        """Return the layout with another dtype or depth; fp8 gets scales, other dtypes none."""
        chosen = self.dtype if dtype is None else dtype
        return replace(
            self,
            dtype=chosen,
            scaled=chosen is Dtype.FLOAT8_E4M3 if dtype is not None else self.scaled,
            num_layers=self.num_layers if num_layers is None else num_layers,
        )

    def __str__(self) -> str:
        streams = "+".join(
            f"{s.name}{s.heads}x{s.dim}{f':{s.dtype.value}' if s.dtype else ''}" for s in self.streams
        )
        scales = " scaled" if self.scaled else ""
        align = f" align{self.block_alignment_bytes}" if self.block_alignment_bytes > 1 else ""
        return f"{self.name} L{self.num_layers} {streams} {self.dtype.value}{scales} tp{self.tp_size}{align}"

    def _stream_bytes(self, stream: Stream) -> int:
        scale = SCALE_BYTES if self.scaled else 0
        return self.heads_on_rank(stream) * (stream.dim * self.dtype_of(stream).itemsize + scale)


def attention_layout(
    name: str, *, num_layers: int, kv_heads: int, head_dim: int, dtype: Dtype = Dtype.BFLOAT16
) -> Layout:
    """Return the layout of MHA (as many KV heads as query heads), GQA (fewer) or MQA (one)."""
    streams = (Stream("k", kv_heads, head_dim), Stream("v", kv_heads, head_dim))
    return Layout(name, num_layers, streams, dtype)


def mla_layout(
    name: str, *, num_layers: int, latent_dim: int, rope_dim: int, dtype: Dtype = Dtype.BFLOAT16
) -> Layout:
    """Return the layout of multi-head latent attention: one latent with its rotary part, on every rank."""
    return Layout(name, num_layers, (Stream("latent", 1, latent_dim + rope_dim, replicated=True),), dtype)


_MODELS = {
    "llama-2-7b": attention_layout("llama-2-7b", num_layers=32, kv_heads=32, head_dim=128),
    "llama-3.1-8b": attention_layout("llama-3.1-8b", num_layers=32, kv_heads=8, head_dim=128),
    "llama-3.1-70b": attention_layout("llama-3.1-70b", num_layers=80, kv_heads=8, head_dim=128),
    "mistral-7b": attention_layout("mistral-7b", num_layers=32, kv_heads=8, head_dim=128),
    "qwen2.5-7b": attention_layout("qwen2.5-7b", num_layers=28, kv_heads=4, head_dim=128),
    "falcon-7b": attention_layout("falcon-7b", num_layers=32, kv_heads=1, head_dim=64),
    "deepseek-v3": mla_layout("deepseek-v3", num_layers=61, latent_dim=512, rope_dim=64),
    "tiny": attention_layout("tiny", num_layers=2, kv_heads=2, head_dim=8),
}


def model_names() -> tuple[str, ...]:
    """Return the names `model_layout` knows."""
    return tuple(_MODELS)


def model_layout(name: str) -> Layout:
    """Return the published cache shape of a model, in bfloat16 on one rank.

    **Raises:** `ConfigError` for an unknown name.
    """
    try:
        return _MODELS[name]
    except KeyError:
        raise ConfigError(f"unknown model {name!r}: expected one of {', '.join(_MODELS)}") from None
