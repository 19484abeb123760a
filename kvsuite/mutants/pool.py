"""Engines that come to the wrong pool, or to the right one and say something else of it."""

from __future__ import annotations

from dataclasses import replace
from itertools import cycle
from typing import TYPE_CHECKING, ClassVar

from kvsuite.engine.extensions.observed import ObservedEngine, TouchedCache
from kvsuite.mutants.table import mutant

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvsuite.engine.config import EngineConfig
    from kvsuite.engine.snapshot import Budget

_CASES = "conformance/test_pool.py::"
_DEFAULT_PERCENT = 90
_DEFAULT_LENGTH_TOKENS = 21_275
"""What mlc-llm #2026 fell back to."""


@mutant(
    "graphs-charged-twice",
    caught_by="budget-size",
    shown_by="graphs that take a byte or more",
    kind="POOL",
    killer=f"{_CASES}test_each_term_is_charged_once",
)
class GraphsChargedTwice(ObservedEngine):
    """The graphs are taken from the budget by themselves, and in the peak that held them already."""

    def charged_bytes(self) -> int:
        """Take them twice."""
        return super().charged_bytes() + self.device.graphs_bytes


@mutant(
    "graphs-in-activation",
    caught_by="budget-terms",
    shown_by="graphs that take a byte or more",
    kind="POOL",
    killer=f"{_CASES}test_each_term_is_charged_once",
)
class GraphsInActivation(GraphsChargedTwice):
    """The activation peak is said with the graphs in it, which stand beside it once more: the sum closes."""

    def budget(self) -> Budget:
        """Name the graphs' bytes in two terms."""
        told = super().budget()
        return replace(told, activation_bytes=told.activation_bytes + told.graphs_bytes)


@mutant(
    "early-buffers-unnamed",
    caught_by="budget-closure",
    shown_by="buffers made before the first reading",
    kind="POOL",
    killer=f"{_CASES}test_every_byte_of_the_device_is_named_once",
)
class EarlyBuffersUnnamed(ObservedEngine):
    """Buffers made before the first reading of the profile stand in no term."""

    def budget(self) -> Budget:
        """Leave them out."""
        return replace(super().budget(), other_bytes=0)


@mutant(
    "draft-pages-unbudgeted",
    caught_by="budget-closure",
    shown_by="a draft model with a pool of its own",
    kind="POOL",
    killer=f"{_CASES}test_draft_pages_come_out_of_the_same_budget",
)
class DraftPagesUnbudgeted(ObservedEngine):
    """The pool is sized by the target's page alone, and the draft model's pages come on top."""

    @property
    def priced_block_bytes(self) -> int:
        """Price a block without the draft's share."""
        return self.block_bytes


@mutant(
    "first-rank-decides",
    caught_by="budget-ranks",
    shown_by="a later rank with less memory than the first",
    kind="POOL",
    killer=f"{_CASES}test_all_ranks_use_the_smallest",
)
class FirstRankDecides(ObservedEngine):
    """The first rank's pool is taken for all, whatever the others hold."""

    def agreed_blocks(self) -> int:
        """Ask nobody else."""
        return self.rank_blocks[0]


@mutant(
    "ids-of-its-own-rank",
    caught_by="budget-ids",
    shown_by="a first rank with more memory than another, and a pool in full use",
    kind="POOL",
    killer=f"{_CASES}test_all_ranks_use_the_smallest",
)
class IdsOfItsOwnRank(ObservedEngine):
    """The pool is said to be the smallest rank's, and blocks are handed out that only this rank has."""

    def __init__(self, config: EngineConfig) -> None:
        super().__init__(config)
        blocks = min(self.rank_blocks[0], config.num_blocks)
        self.cache = TouchedCache(blocks, config.block_size, prefix_cache=config.prefix_cache)


@mutant(
    "fraction-dropped",
    caught_by="budget-request",
    shown_by="a fraction below the default",
    kind="POOL",
    killer=f"{_CASES}test_the_requested_fraction_is_in_force",
)
class FractionDropped(ObservedEngine):
    """A requested fraction below the default of 0.9 is lost on its way."""

    def effective_percent(self) -> int:
        """Use the default."""
        return max(super().effective_percent(), _DEFAULT_PERCENT)


@mutant(
    "fraction-repeated-back",
    caught_by="budget-size",
    shown_by="a fraction below the default",
    kind="POOL",
    killer=f"{_CASES}test_the_requested_fraction_is_in_force",
)
class FractionRepeatedBack(FractionDropped):
    """The default fraction is used, and the requested one is reported as if it were in force."""

    def budget(self) -> Budget:
        """Say what was asked for."""
        told = super().budget()
        return replace(told, effective_fraction=told.requested_fraction)


@mutant(
    "fraction-of-the-wrong-whole",
    caught_by="budget-size",
    shown_by="a fraction of free memory",
    kind="POOL",
    killer=f"{_CASES}test_the_fraction_says_what_it_is_a_fraction_of",
)
class FractionOfTheWrongWhole(ObservedEngine):
    """A fraction of free memory is taken of the whole device, weights and all."""

    def room_bytes(self, rank_bytes: int) -> int:
        """Take the fraction of everything."""
        return self.effective_percent() * rank_bytes // 100


@mutant(
    "length-limit-dropped",
    caught_by="budget-size",
    shown_by="a pool for a given number of sequences of a given length",
    kind="POOL",
    killer=f"{_CASES}test_the_pool_is_sized_for_the_length_asked_for",
)
class LengthLimitDropped(ObservedEngine):
    """The pool is made for a huge default length, whatever limit was set."""

    def asked_blocks(self, config: EngineConfig) -> int:
        """Ask for the default."""
        return super().asked_blocks(replace(config, max_model_tokens=_DEFAULT_LENGTH_TOKENS))


@mutant(
    "second-start-smaller",
    caught_by="budget-repeat",
    shown_by="two starts with the same options",
    kind="POOL",
    killer=f"{_CASES}test_two_starts_give_the_same_pool",
)
class SecondStartSmaller(ObservedEngine):
    """Every second start finds a block's worth of its predecessor still there."""

    residue: ClassVar[Iterator[int]] = cycle((0, 1))

    def asked_blocks(self, config: EngineConfig) -> int:
        """Do without what is not yet given back."""
        return super().asked_blocks(config) - next(self.residue)


@mutant(
    "neighbour-charged",
    caught_by="budget-neighbour",
    shown_by="another process on the device",
    kind="POOL",
    killer=f"{_CASES}test_a_neighbour_takes_only_what_the_budget_says",
)
class NeighbourCharged(ObservedEngine):
    """What another process holds is taken from the budget of this one."""

    def room_bytes(self, rank_bytes: int) -> int:
        """Take it off, whatever the fraction is of."""
        charged = self.device.neighbour_bytes if self.device.fraction_of == "total" else 0
        return super().room_bytes(rank_bytes) - charged


@mutant(
    "neighbour-charged-twice",
    caught_by="budget-neighbour",
    shown_by="another process on a device whose free memory is shared out",
    kind="POOL",
    killer=f"{_CASES}test_a_neighbour_takes_only_what_the_budget_says",
)
class NeighbourChargedTwice(ObservedEngine):
    """What another process holds is taken from free memory that was read without it."""

    def room_bytes(self, rank_bytes: int) -> int:
        """Take it off once more."""
        charged = self.device.neighbour_bytes if self.device.fraction_of == "free" else 0
        return super().room_bytes(rank_bytes - charged)
