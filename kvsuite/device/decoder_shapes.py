"""Shapes of Llama-like decoders: what a model's cache layout does not say of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvsuite.cache.layout import model_layout
from kvsuite.errors import ConfigError

if TYPE_CHECKING:
    from kvsuite.cache.layout import Dtype, Layout


@dataclass(frozen=True, slots=True)
class DecoderShape:
    """A decoder of ``layout.num_layers`` layers with ``layout``'s cache, in its dtype.

    ``layout`` has streams ``k`` and ``v``; query heads are a multiple of its heads.
    """

    layout: Layout
    hidden_size: int
    intermediate_size: int
    query_heads: int
    vocabulary: int
    rope_theta: float
    norm_epsilon: float = 1e-5

    @property
    def kv_heads(self) -> int:
        """KV heads."""
        return self.layout.streams[0].heads

    @property
    def head_dim(self) -> int:
        """Elements of a head."""
        return self.layout.streams[0].dim

    @property
    def layer_parameters(self) -> int:
        """Weights of one layer: query, key, value and output projections, the gated MLP, two norms."""
        heads = 2 * self.query_heads + 2 * self.kv_heads
        projections = self.hidden_size * heads * self.head_dim
        return projections + 3 * self.hidden_size * self.intermediate_size + 2 * self.hidden_size


# Hidden size, intermediate size, query heads, vocabulary and RoPE base, as the models' config.json have them.
_SHAPES = {
    "llama-2-7b": (4096, 11008, 32, 32000, 1e4),
    "llama-3.1-8b": (4096, 14336, 32, 128256, 5e5),
    "llama-3.1-70b": (8192, 28672, 64, 128256, 5e5),
    "mistral-7b": (4096, 14336, 32, 32768, 1e6),
    "qwen2.5-7b": (3584, 18944, 28, 152064, 1e6),
    "tiny": (32, 64, 4, 96, 1e4),
}


def decoder_shape(model: str, *, num_layers: int | None = None, dtype: Dtype | None = None) -> DecoderShape:
    """Return the shape of a model, with another depth or dtype where given.

    What is not Llama's is left out: biases of Qwen's projections, scaled positions, windows.

    **Raises:** `ConfigError` for a model that is not shaped like Llama.

    >>> decoder_shape("llama-3.1-8b").layer_parameters
    218112000
    """
    layout = model_layout(model).with_(dtype=dtype, num_layers=num_layers)
    if model not in _SHAPES:
        known = ", ".join(_SHAPES)
        raise ConfigError(f"{model} is not shaped like Llama: a decoder can be {known}")
    return DecoderShape(layout, *_SHAPES[model])
