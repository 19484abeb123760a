"""Engines that price a token or a page wrong: their declared bytes are not those of the layout."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace
from typing import TYPE_CHECKING

from kvsuite.engine.contract import Capability
from kvsuite.engine.reference import ReferenceEngine
from kvsuite.engine.snapshot import MemoryClaim, Storage
from kvsuite.mutants.table import mutant

if TYPE_CHECKING:
    from kvsuite.cache.layout import Layout
    from kvsuite.engine.config import EngineConfig

_POOL_POINTER = 0x7E00_0000_0000
_HIDDEN_PER_HEAD = {"qwen3-4b": 2560 // 32, "gemma-2-9b": 3584 // 16}
"""Hidden size over query heads, where the model says its head size apart."""


class _Mispriced(ReferenceEngine):
    """Declares the bytes of another layout than the one it was given."""

    def __init__(self, config: EngineConfig) -> None:
        super().__init__(config)
        (pool,) = self._spec.pools
        wrong = replace(pool, bytes_per_token=self.token_bytes(config.layout))
        self._spec = replace(self._spec, pools=(wrong,))

    @abstractmethod
    def token_bytes(self, layout: Layout) -> int:
        """Return what is said to be the bytes of a token."""


@mutant(
    "side-stream-at-main-width",
    caught_by="bytes",
    kind="BYTES",
    killer="conformance/test_bytes.py::test_a_side_stream_keeps_its_own_width",
    shown_by="a layout with a one-byte index beside a two-byte latent",
)
class SideStreamAtMainWidth(_Mispriced):
    """A stream of one-byte elements is priced at the width of the main stream."""

    def token_bytes(self, layout: Layout) -> int:
        """Forget the widths of single streams."""
        return replace(layout, streams=tuple(replace(s, dtype=None) for s in layout.streams)).bytes_per_token


@mutant(
    "latent-priced-twice",
    caught_by="bytes",
    kind="BYTES",
    killer="conformance/test_bytes.py::test_a_latent_is_priced_once",
    shown_by="a layout with a latent",
)
class LatentPricedTwice(_Mispriced):
    """A latent is priced as a key and a value, though one vector serves as both."""

    def token_bytes(self, layout: Layout) -> int:
        """Add each latent once more."""
        latents = tuple(stream for stream in layout.streams if stream.replicated)
        return replace(layout, streams=(*layout.streams, *latents)).bytes_per_token


@mutant(
    "heads-not-split",
    caught_by="bytes",
    kind="BYTES",
    killer="conformance/test_bytes.py::test_twice_the_ranks_halve_a_rank_until_heads_run_out",
    shown_by="two ranks or more",
)
class HeadsNotSplit(_Mispriced):
    """A rank is priced with the heads of all ranks."""

    def token_bytes(self, layout: Layout) -> int:
        """Forget the other ranks."""
        return replace(layout, tp_size=1, tp_rank=0).bytes_per_token


@mutant(
    "heads-divided-to-none",
    caught_by="bytes",
    kind="BYTES",
    killer="conformance/test_bytes.py::test_a_token_takes_its_streams_over_its_heads",
    shown_by="more ranks than KV heads",
)
class HeadsDividedToNone(_Mispriced):
    """Heads of a rank are heads divided by ranks, which is none where ranks outnumber heads."""

    def token_bytes(self, layout: Layout) -> int:
        """Divide the whole token by the ranks, rounding heads down; a declared 0 would be refused at once."""
        whole = replace(layout, tp_size=1, tp_rank=0)
        heads = layout.streams[0].heads
        return max(1, whole.bytes_per_token * (heads // layout.tp_size) // heads)


@mutant(
    "head-size-from-hidden",
    caught_by="bytes",
    kind="BYTES",
    killer="conformance/test_bytes.py::test_the_head_size_is_the_models_own",
    shown_by="a model whose head size is not hidden size over heads",
)
class HeadSizeFromHidden(_Mispriced):
    """The head size is taken to be the hidden size over the query heads."""

    def token_bytes(self, layout: Layout) -> int:
        """Derive the head size of the models it knows."""
        derived = _HIDDEN_PER_HEAD.get(layout.name)
        streams = tuple(replace(s, dim=derived or s.dim) for s in layout.streams)
        return replace(layout, streams=streams).bytes_per_token


@mutant(
    "scales-not-priced",
    caught_by="bytes",
    kind="BYTES",
    killer="conformance/test_bytes.py::test_scales_do_not_follow_the_width",
    shown_by="a scaled layout",
)
class ScalesNotPriced(_Mispriced):
    """The scales that fp8 elements need are left out of a token's bytes."""

    def token_bytes(self, layout: Layout) -> int:
        """Count elements alone."""
        return replace(layout, scaled=False).bytes_per_token


@mutant(
    "latent-split-over-ranks",
    caught_by="bytes",
    kind="BYTES",
    killer="conformance/test_bytes.py::test_a_latent_is_whole_on_every_rank",
    shown_by="a latent on two ranks or more",
)
class LatentSplitOverRanks(_Mispriced):
    """A latent, which every rank keeps whole, is priced as if ranks shared it out."""

    def token_bytes(self, layout: Layout) -> int:
        """Divide replicated streams by the ranks."""
        streams = tuple(
            replace(s, dim=s.dim // layout.tp_size) if s.replicated else s for s in layout.streams
        )
        return replace(layout, streams=streams).bytes_per_token


@mutant(
    "elements-of-two-bytes",
    caught_by="bytes",
    kind="BYTES",
    killer="conformance/test_bytes.py::test_half_the_width_holds_twice_the_tokens",
    shown_by="elements narrower than two bytes, or wider",
)
class WidthAlwaysTwo(_Mispriced):
    """Every element is priced at two bytes, whatever the cache's dtype."""

    def token_bytes(self, layout: Layout) -> int:
        """Pay two bytes an element."""
        scales = layout.bytes_per_token - replace(layout, scaled=False).bytes_per_token
        elements = replace(layout, scaled=False).bytes_per_token // layout.dtype.itemsize
        return 2 * elements + scales


@mutant(
    "pad-not-declared",
    caught_by="bytes",
    kind="BYTES",
    killer="conformance/test_bytes.py::test_a_page_is_its_tokens_and_its_pad",
    shown_by="a block that is rounded up to an alignment",
)
class PadNotDeclared(ReferenceEngine):
    """The bytes that round a block up to its alignment are not declared."""

    def __init__(self, config: EngineConfig) -> None:
        super().__init__(config)
        (pool,) = self._spec.pools
        self._spec = replace(self._spec, pools=(replace(pool, pad_bytes_per_block=0),))


@mutant(
    "token-bytes-grow-with-blocks",
    caught_by="bytes",
    kind="BYTES",
    killer="conformance/test_bytes.py::test_a_slot_costs_the_same_in_any_block_size",
    shown_by="two block sizes",
)
class TokenBytesGrowWithBlocks(ReferenceEngine):
    """A block's table entry is charged to each of its tokens, so that a slot costs more in a larger block."""

    def __init__(self, config: EngineConfig) -> None:
        super().__init__(config)
        (pool,) = self._spec.pools
        charged = pool.bytes_per_token + 4 * (pool.block_size // 16)
        self._spec = replace(self._spec, pools=(replace(pool, bytes_per_token=charged),))


@mutant(
    "half-the-tensors",
    caught_by="bytes",
    kind="BYTES",
    killer="conformance/test_bytes.py::test_storages_hold_every_page",
    shown_by="an engine that says what storages it holds",
)
class HalfTheTensors(ReferenceEngine):
    """Tensors are sized with another page than the declared one: they hold half the blocks."""

    def __init__(self, config: EngineConfig) -> None:
        super().__init__(config)
        claimed = self._spec.capabilities | {Capability.MEMORY}
        self._spec = replace(self._spec, capabilities=claimed)

    def memory(self) -> MemoryClaim:
        """Return a storage of half the pool."""
        held = self._spec.pools[0].pool_bytes // 2
        return MemoryClaim((Storage("pool", _POOL_POINTER, held, owner=self.name),), claimed_cache_bytes=held)
