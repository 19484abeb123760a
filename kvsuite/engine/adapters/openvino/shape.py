"""The tiny Llama that is served, and the bytes of its cache in each precision of OpenVINO's CPU plugin.

A block of ``b`` tokens, one layer, one KV head of ``d`` elements, in elements of the precision; a row of
quantised values carries its scale and zero point, 8 bytes::

    bf16, f16    keys b * d                     values b * d
    u8, u4       keys (b + 8 bytes) * d         values b * (d + 8 bytes)

Keys are quantised by channel over a block, values by token, which is the plugin's default. For u8 this is
what the engine reports, 5632 bytes for two layers of two heads of 16 at 32 tokens. For u4 it is what the
process maps; the engine reports twice that, because its metric counts half a byte as a whole one.
"""

from __future__ import annotations

from dataclasses import dataclass

BLOCK_SIZE = 32
"""Tokens of a block on the CPU; the plugin has no other."""
_SCALE_BYTES = 8
_BITS = {"bf16": 16, "f16": 16, "u8": 8, "u4": 4}
PRECISIONS = tuple(_BITS)


@dataclass(frozen=True, slots=True)
class ModelShape:
    """What the tiny model is exported with, and what its cache follows from."""

    num_layers: int = 2
    num_heads: int = 4
    kv_heads: int = 2
    head_dim: int = 16
    vocabulary: int = 256
    max_positions: int = 16384

    def arguments(self) -> dict[str, int]:
        """Return the model's configuration under the names of transformers."""
        return {
            "hidden_size": self.num_heads * self.head_dim,
            "intermediate_size": 2 * self.num_heads * self.head_dim,
            "num_hidden_layers": self.num_layers,
            "num_attention_heads": self.num_heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "vocab_size": self.vocabulary,
            "max_position_embeddings": self.max_positions,
        }

    def block_bytes(self, precision: str) -> int:
        """Return the bytes of one block of `BLOCK_SIZE` tokens, keys and values of every layer.

        >>> [ModelShape().block_bytes(precision) for precision in PRECISIONS]
        [8192, 8192, 5632, 3584]
        """
        bits = _BITS[precision]
        scale = _SCALE_BYTES * 8 // bits if bits <= 8 else 0
        elements = (BLOCK_SIZE + scale) * self.head_dim + BLOCK_SIZE * (self.head_dim + scale)
        return self.num_layers * self.kv_heads * elements * bits // 8

    def text(self, precision: str) -> str:
        """Return the layout as a report shows it."""
        head = f"{self.kv_heads}x{self.head_dim}"
        return f"tiny-llama L{self.num_layers} k{head}+v{head} {precision}"


SHAPE = ModelShape()
