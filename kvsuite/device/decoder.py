"""A small real decoder, so that a step is a whole step: Llama's layers, any number, with random weights.

    x = embedding[token]
    x = x + attend(norm(x))          RMSNorm, RoPE, grouped queries; keys and values go into the pool's slots
    x = x + down(silu(gate) * up)    of norm(x)
    logits = head(norm(x))

A decode step writes one token of each sequence and reads every token of it through a kernel and the block
table. A prefill chunk writes its tokens and attends, causally, to copies gathered through the table. Time
spent in attention is told apart from the rest.
"""

from __future__ import annotations

import math
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch.nn.functional import linear, scaled_dot_product_attention, silu

from kvsuite.device.attention.call import TORCH_DTYPES
from kvsuite.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvsuite.device.attention.call import DecodeAttention, KVView
    from kvsuite.device.decoder_shapes import DecoderShape
    from kvsuite.device.spans import Spans


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One layer's weights, ``[out, in]``; ``qkv`` stacks three projections, ``gate_up`` two."""

    input_norm: torch.Tensor
    qkv: torch.Tensor
    output: torch.Tensor
    mlp_norm: torch.Tensor
    gate_up: torch.Tensor
    down: torch.Tensor


@dataclass(frozen=True, slots=True)
class DecodeBatch:
    """One new token of each of ``n`` sequences: where it is written, and what it reads.

    tokens        int64 [n]
    slots         int64 [n]           block * block size + offset, where the token's keys and values go
    block_tables  int32 [n, width]
    lengths       int32 [n]           tokens with the new one, which stands at position length - 1
    """

    tokens: torch.Tensor
    slots: torch.Tensor
    block_tables: torch.Tensor
    lengths: torch.Tensor


class Decoder:
    """Weights drawn from ``seed`` with deviation ``1 / sqrt(in)``, so that values keep their size.

    ``with_head=False`` leaves out embedding and head: every token is the same noise, and results are hidden
    states. ``attention_spans`` is entered around each call of attention.

    **Raises:** `ConfigError` for a dtype that has no arithmetic here.
    """

    def __init__(
        self,
        shape: DecoderShape,
        *,
        device: str = "cpu",
        seed: int = 0,
        with_head: bool = True,
        attention_spans: Spans | None = None,
    ) -> None:
        if shape.layout.dtype not in TORCH_DTYPES:
            raise ConfigError(
                f"a decoder in {shape.layout.dtype.value}: expected float32, float16 or bfloat16"
            )
        self.shape = shape
        self.device = device
        self.dtype = TORCH_DTYPES[shape.layout.dtype]
        self.with_head = with_head
        self._spans = nullcontext() if attention_spans is None else attention_spans
        self._draw = torch.Generator(device).manual_seed(seed)
        hidden, heads = shape.hidden_size, (shape.query_heads + 2 * shape.kv_heads) * shape.head_dim
        self.layers = [
            LayerWeights(
                self._norm(),
                self._matrix(heads, hidden),
                self._matrix(hidden, shape.query_heads * shape.head_dim),
                self._norm(),
                self._matrix(2 * shape.intermediate_size, hidden),
                self._matrix(hidden, shape.intermediate_size),
            )
            for _ in range(shape.layout.num_layers)
        ]
        self.final_norm = self._norm()
        rows = shape.vocabulary if with_head else 1
        self.embedding = self._matrix(rows, hidden) * math.sqrt(hidden)
        self.head = self._matrix(rows, hidden)
        half = torch.arange(0, shape.head_dim, 2, dtype=torch.float32, device=device) / shape.head_dim
        self._frequencies = shape.rope_theta**-half

    @torch.inference_mode()
    def decode_step(
        self, batch: DecodeBatch, pool: Sequence[KVView], kernel: DecodeAttention
    ) -> torch.Tensor:
        """Return logits ``[n, vocabulary]`` (hidden states without a head) after one token of each sequence.

        ``pool`` has a view for each layer. **Mutates:** the slots of ``batch``.

        **Raises:** `ConfigError` for another number of views than layers, and what ``kernel`` raises.
        """
        self._check(pool)
        rotation = self._rotation(batch.lengths - 1)
        scale = self.shape.head_dim**-0.5
        x = self._embed(batch.tokens)
        for layer, kv in zip(self.layers, pool, strict=True):
            query, key, value = self._project(layer, x, rotation)
            _write(kv, batch.slots, key, value)
            with self._spans:
                attended = kernel(
                    query, kv, batch.block_tables, batch.lengths, block_size=kv.block_size, scale=scale
                )
            x = self._finish(layer, x, attended)
        return self._logits(x)

    @torch.inference_mode()
    def prefill_chunk(
        self,
        tokens: torch.Tensor,
        slots: torch.Tensor,
        block_table: torch.Tensor,
        pool: Sequence[KVView],
        *,
        start: int,
    ) -> torch.Tensor:
        """Return logits ``[vocabulary]`` of the last of ``tokens``, int64 [n], which stand from ``start`` on.

        ``slots`` is int64 [n], ``block_table`` int32 [width] of this sequence, earlier tokens included.
        **Mutates:** the slots. **Raises:** `ConfigError` as `decode_step` does.
        """
        self._check(pool)
        end = start + len(tokens)
        rotation = self._rotation(torch.arange(start, end, device=self.device))
        x = self._embed(tokens)
        for layer, kv in zip(self.layers, pool, strict=True):
            query, key, value = self._project(layer, x, rotation)
            _write(kv, slots, key, value)
            with self._spans:
                attended = _attend_causally(query, kv, block_table, start, end)
            x = self._finish(layer, x, attended)
        return self._logits(x[-1:])[0]

    def _project(
        self, layer: LayerWeights, x: torch.Tensor, rotation: tuple[torch.Tensor, torch.Tensor]
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return queries, keys and values ``[n, heads, head_dim]``, the first two at their positions."""
        shape = self.shape
        mixed = linear(self._normed(x, layer.input_norm), layer.qkv).view(len(x), -1, shape.head_dim)
        query, key, value = torch.split(mixed, [shape.query_heads, shape.kv_heads, shape.kv_heads], dim=1)
        return _rotate(query, *rotation), _rotate(key, *rotation), value

    def _finish(self, layer: LayerWeights, x: torch.Tensor, attended: torch.Tensor) -> torch.Tensor:
        x = x + linear(attended.flatten(1), layer.output)
        gate, up = linear(self._normed(x, layer.mlp_norm), layer.gate_up).chunk(2, dim=-1)
        return x + linear(silu(gate) * up, layer.down)

    def _embed(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.embedding[tokens if self.with_head else tokens * 0]

    def _logits(self, x: torch.Tensor) -> torch.Tensor:
        normed = self._normed(x, self.final_norm)
        return linear(normed, self.head) if self.with_head else normed

    def _normed(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        scaled = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.shape.norm_epsilon)
        return scaled.to(self.dtype) * weight

    def _rotation(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return cosines and sines ``[n, 1, head_dim / 2]`` of the angles at ``positions``."""
        angles = positions.float()[:, None, None] * self._frequencies
        return angles.cos(), angles.sin()

    def _check(self, pool: Sequence[KVView]) -> None:
        if len(pool) != len(self.layers):
            raise ConfigError(f"{len(pool)} views of a pool for {len(self.layers)} layers: give one each")

    def _matrix(self, rows: int, columns: int) -> torch.Tensor:
        drawn = torch.empty(rows, columns, dtype=self.dtype, device=self.device)
        return drawn.normal_(0.0, columns**-0.5, generator=self._draw)

    def _norm(self) -> torch.Tensor:
        drawn = torch.empty(self.shape.hidden_size, dtype=self.dtype, device=self.device)
        return drawn.uniform_(0.5, 1.5, generator=self._draw)


def _rotate(heads: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
    """Turn each pair (element i, element i + head_dim / 2) by its angle, in float32."""
    first, second = heads.float().chunk(2, dim=-1)
    turned = torch.cat((first * cosine - second * sine, second * cosine + first * sine), dim=-1)
    return turned.to(heads.dtype)


def _write(kv: KVView, slots: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> None:
    blocks, offsets = slots // kv.block_size, slots % kv.block_size
    kv.k[blocks, offsets] = key
    kv.v[blocks, offsets] = value


def _attend_causally(
    query: torch.Tensor, kv: KVView, block_table: torch.Tensor, start: int, end: int
) -> torch.Tensor:
    """Return the attention of ``end - start`` queries over the tokens up to each one's own position."""
    blocks = block_table[: -(-end // kv.block_size)].long()
    keys, values = (plane[blocks].flatten(0, 1)[:end].transpose(0, 1)[:, None] for plane in (kv.k, kv.v))
    heads = query.view(len(query), kv.kv_heads, -1, kv.head_dim).permute(1, 2, 0, 3)
    group = heads.shape[1]
    mask = torch.ones(end - start, end, dtype=torch.bool, device=query.device).tril(start) if start else None
    attended = scaled_dot_product_attention(
        heads,
        keys.expand(-1, group, -1, -1),
        values.expand(-1, group, -1, -1),
        attn_mask=mask,
        is_causal=mask is None,
        scale=kv.head_dim**-0.5,
    )
    return attended.permute(2, 0, 1, 3).flatten(1, 2)
