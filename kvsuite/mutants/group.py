"""Engines of several groups in which one group is priced, sized, kept or shared wrong."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kvsuite.cache.paged import PagedCache
from kvsuite.engine.contract import NO_OPS, Ops
from kvsuite.engine.extensions.group_members import WindowGroup, WindowGroupCache
from kvsuite.engine.extensions.groups import GroupsEngine
from kvsuite.engine.snapshot import PoolKey
from kvsuite.mutants.table import mutant

if TYPE_CHECKING:
    from kvsuite.cache.paged import Shortfall
    from kvsuite.engine.config import EngineConfig
    from kvsuite.engine.contract import EngineSpec
    from kvsuite.engine.snapshot import PoolSnapshot
    from kvsuite.trace.model import RequestId
    from kvsuite.trace.tokens import TokenRun


class _FullPriceCache(WindowGroupCache):
    def _shortfall(self, total_blocks: int, hits: list[int]) -> Shortfall | None:
        return PagedCache._shortfall(self, total_blocks, hits)


class _FullPriceGroup(WindowGroup):
    cache_type: type[PagedCache] = _FullPriceCache


@mutant(
    "window-priced-at-full-length",
    caught_by="groups",
    kind="GROUP",
    killer="conformance/test_group_cost.py::test_a_window_is_priced_as_a_window",
    shown_by="a prompt longer than the window in a window pool that is smaller still",
)
class WindowPricedAtFullLength(GroupsEngine):
    """Admission asks a window group for the blocks of the whole prompt."""

    window_group = _FullPriceGroup


class _FullPromiseCache(WindowGroupCache):
    def _shortfall(self, total_blocks: int, hits: list[int]) -> Shortfall | None:
        return PagedCache._shortfall(self, min(total_blocks, self.peak_blocks(self._step_tokens)), hits)


class _FullPromiseGroup(WindowGroup):
    cache_type: type[PagedCache] = _FullPromiseCache


@mutant(
    "window-promised-at-full-length",
    caught_by="groups",
    kind="GROUP",
    killer="conformance/test_group_cost.py::test_a_load_is_what_all_groups_hold_together",
    shown_by="several long prompts in a small window pool",
)
class WindowPromisedAtFullLength(GroupsEngine):
    """A prompt under way keeps the blocks of its full length from others in a window group."""

    window_group = _FullPromiseGroup


@mutant(
    "window-layers-priced-twice",
    caught_by="bytes",
    kind="GROUP",
    killer="conformance/test_group_cost.py::test_every_layer_is_priced_once",
    shown_by="layers in two groups",
)
class WindowLayersPricedTwice(GroupsEngine):
    """The first group is priced with the layers of all groups, and the others are added on top."""

    def __init__(self, config: EngineConfig) -> None:
        super().__init__(config)
        first, *others = self._spec.pools
        whole = replace(first, bytes_per_token=config.layout.bytes_per_token)
        self._spec = replace(self._spec, pools=(whole, *others))


@mutant(
    "pool-sized-before-its-groups",
    caught_by="groups",
    kind="GROUP",
    killer="conformance/test_group.py::test_every_id_exists_in_its_pool",
    shown_by="a full pool",
)
class PoolSizedBeforeItsGroups(GroupsEngine):
    """The last group's pool is sized before an adjustment, so ids are given out that it does not have."""

    @property
    def spec(self) -> EngineSpec:
        """Report a pool of half the blocks."""
        spec = super().spec
        *others, last = spec.pools
        return replace(spec, pools=(*others, replace(last, num_blocks=last.num_blocks // 2)))


class _ForgetfulWindowCache(WindowGroupCache):
    def let_go(self, sequence: str, start: int, stop: int) -> None:
        if self.prefixes is not None:
            self.prefixes.forget(self._tables[sequence].blocks[start:stop])
        super().let_go(sequence, start, stop)


class _ForgetfulWindowGroup(WindowGroup):
    cache_type: type[PagedCache] = _ForgetfulWindowCache


@mutant(
    "early-window-blocks-forgotten",
    caught_by="groups",
    kind="GROUP",
    killer="conformance/test_group.py::test_a_rewind_is_found_in_every_group",
    shown_by="a long sequence whose first blocks are asked for again",
)
class EarlyWindowBlocksForgotten(GroupsEngine):
    """Blocks that fall out of a window lose their keys, so a rewind misses where full layers hit."""

    window_group = _ForgetfulWindowGroup


@mutant(
    "hits-of-the-first-group",
    caught_by="content",
    kind="GROUP",
    killer="conformance/test_group.py::test_a_prefix_is_found_as_far_as_every_group_holds_it",
    shown_by="a cached prompt that ends inside a block of a larger group",
)
class HitsOfTheFirstGroup(GroupsEngine):
    """What the first group finds counts as found in all of them."""

    def _found(self, prompt: TokenRun) -> int:
        first = self.groups[0]
        first.found_tokens = prompt.stop
        return first.found(prompt)


@mutant(
    "groups-take-before-they-ask",
    caught_by="atomic",
    kind="GROUP",
    killer="conformance/test_group.py::test_a_refusal_in_one_group_changes_none",
    shown_by="growth that only the window pool refuses",
)
class GroupsTakeBeforeTheyAsk(GroupsEngine):
    """Growth takes blocks in one group after the other, and keeps them where a later one refuses."""

    def extend(self, request_id: RequestId, tokens: TokenRun, *, lookahead_tokens: int = 0) -> bool:
        """Ask no group before the first one takes."""
        for group in self.groups:
            if not group.cache.extend(request_id, len(tokens)):
                return False
            group._contents[request_id] = tokens.content
        return True


@mutant(
    "copies-of-the-first-group",
    caught_by="content",
    kind="GROUP",
    killer="conformance/test_group.py::test_a_fork_diverges_in_every_group",
    shown_by="a fork that diverges inside a block",
)
class CopiesOfTheFirstGroup(GroupsEngine):
    """Private copies are made in the first group alone; in the others a table points to an empty block."""

    def take_ops(self) -> Ops:
        """Lose the copies of the other groups."""
        copies = tuple(c for c in super().take_ops().copies if c.pool == PoolKey())
        return Ops(copies) if copies else NO_OPS


class _EagerWindow(WindowGroup):
    def due(self, settled_tokens: int) -> int:
        """Count one block too many once anything is due."""
        due = super().due(settled_tokens)
        return due + 1 if due else 0


@mutant(
    "window-one-block-short",
    caught_by="window",
    kind="GROUP",
    killer="conformance/test_group.py::test_each_group_holds_its_own_blocks",
    shown_by="a sequence one block longer than the window",
)
class WindowOneBlockShort(GroupsEngine):
    """A window lets go of one block more than it should."""

    window_group = _EagerWindow


class _KeepingWindow(WindowGroup):
    def due(self, settled_tokens: int) -> int:
        """Let nothing go."""
        del settled_tokens
        return 0


@mutant(
    "window-group-kept-whole",
    caught_by="groups",
    kind="GROUP",
    killer="conformance/test_group_cost.py::test_bytes_are_a_fixed_part_and_a_rate",
    shown_by="two lengths beyond the window",
)
class WindowGroupKeptWhole(GroupsEngine):
    """A window group is declared and lets go of nothing: its bytes grow with the sequence."""

    window_group = _KeepingWindow


@mutant(
    "short-slack-hidden",
    caught_by="lengths",
    kind="GROUP",
    killer="conformance/test_group_cost.py::test_a_short_prompt_pins_a_page_of_every_group",
    shown_by="a prompt shorter than a block of the larger group",
)
class ShortSlackHidden(GroupsEngine):
    """Groups with larger blocks report their last block as full, so what a short prompt pins is nowhere."""

    def snapshot(self, since: int | None = None) -> tuple[PoolSnapshot, ...]:
        """Round lengths up in every group but the first."""
        first, *others = super().snapshot(since)
        rounded = []
        for shot, group in zip(others, self.groups[1:], strict=True):
            size = group.cache.block_size
            rounded.append(replace(shot, lengths=-(-shot.lengths // size) * size))
        return (first, *rounded)


@mutant(
    "pool-shrinks-with-its-limit",
    caught_by="groups",
    kind="GROUP",
    killer="conformance/test_group_cost.py::test_a_lower_limit_never_shrinks_a_pool",
    shown_by="two limits on the longest sequence",
)
class PoolShrinksWithItsLimit(GroupsEngine):
    """A window pool is cut to the longest sequence, so a lower limit leaves fewer blocks for all."""

    def __init__(self, config: EngineConfig) -> None:
        if config.max_model_tokens is not None:
            longest_blocks = 1 + -(-config.max_model_tokens // config.block_size)
            options = {"window_blocks": min(config.num_blocks + 1, longest_blocks), **config.options}
            config = replace(config, options=options)
        super().__init__(config)
