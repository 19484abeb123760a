"""Engines in which two parts mean different block sizes."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kvsuite.engine.extensions.group_members import WindowGroup
from kvsuite.engine.extensions.groups import GroupsEngine
from kvsuite.engine.reference import ReferenceEngine
from kvsuite.mutants.table import mutant

if TYPE_CHECKING:
    from kvsuite.engine.config import EngineConfig
    from kvsuite.engine.contract import EngineSpec
    from kvsuite.engine.extensions.group_members import FullGroup
    from kvsuite.engine.snapshot import Int64Array
    from kvsuite.trace.model import RequestId
    from kvsuite.trace.tokens import PrefixKey, TokenRun


@mutant(
    "manager-ids-to-the-kernel",
    caught_by="units",
    kind="UNIT",
    killer="conformance/test_unit.py::test_every_token_lies_in_its_kernel_slot",
    shown_by="a block of several kernel blocks",
)
class ManagerIdsToTheKernel(GroupsEngine):
    """The kernel is given the manager's block ids as if they counted its own smaller blocks."""

    @staticmethod
    def _kernel_blocks(blocks: Int64Array, parts: int) -> Int64Array:
        return blocks.repeat(parts)


class _StaleIndices(GroupsEngine):
    def _slots(self, group: FullGroup, request_id: RequestId, start: int) -> Int64Array:
        slots = super()._slots(group, request_id, start)
        return slots[:-1] if start == 0 and self.stale(group) else slots

    @staticmethod
    def stale(group: FullGroup) -> bool:
        """Return whether the indices that a group reads are made too early."""
        raise NotImplementedError


@mutant(
    "window-reads-miss-newest",
    caught_by="content",
    kind="UNIT",
    killer="conformance/test_unit.py::test_what_the_kernel_is_given_leads_to_what_was_written",
    shown_by="decoding in a group with a window",
)
class WindowReadsMissNewest(_StaleIndices):
    """The indices that a window reads are made before the newest token has its slot."""

    @staticmethod
    def stale(group: FullGroup) -> bool:
        """Leave out the newest token of windows."""
        return isinstance(group, WindowGroup)


@mutant(
    "write-index-repeated",
    caught_by="content",
    kind="UNIT",
    killer="conformance/test_unit.py::test_what_the_kernel_is_given_leads_to_what_was_written",
    shown_by="a prompt chunk of two tokens or more",
)
class WriteIndexRepeated(GroupsEngine):
    """The last two tokens of a chunk are written to one slot."""

    def write_slots(self, request_id: RequestId) -> tuple[Int64Array, ...]:
        """Repeat an index."""
        given = super().write_slots(request_id)
        return tuple(slots[[*range(len(slots) - 1), max(0, len(slots) - 2)]] for slots in given)


@mutant(
    "kernel-size-from-heads",
    caught_by="units",
    kind="UNIT",
    killer="conformance/test_unit.py::test_the_kernel_size_is_no_axis_of_a_shape",
    shown_by="layouts of other head counts",
)
class KernelSizeFromHeads(ReferenceEngine):
    """The kernel's block size is read off the axis of a tensor where heads stand."""

    def __init__(self, config: EngineConfig) -> None:
        super().__init__(config)
        (pool,) = self._spec.pools
        heads = config.layout.heads_on_rank(config.layout.streams[0])
        self._spec = replace(self._spec, pools=(replace(pool, kernel_block_size=heads),))


@mutant(
    "packed-kernel-page",
    caught_by="units",
    kind="UNIT",
    killer="conformance/test_unit.py::test_a_page_of_one_token_is_one_token_to_the_kernel",
    shown_by="blocks of one token",
)
class PackedKernelPage(ReferenceEngine):
    """Two-byte elements are packed in pairs, so the kernel sees pages of two tokens where one was set."""

    def __init__(self, config: EngineConfig) -> None:
        super().__init__(config)
        (pool,) = self._spec.pools
        self._spec = replace(self._spec, pools=(replace(pool, kernel_block_size=max(2, pool.block_size)),))


@mutant(
    "size-overwritten-in-one-place",
    caught_by="units",
    kind="UNIT",
    killer="conformance/test_unit.py::test_one_block_size_everywhere",
    shown_by="any block size",
)
class SizeOverwrittenInOnePlace(ReferenceEngine):
    """The block size in force is reported as it was set before a second backend halved it."""

    @property
    def spec(self) -> EngineSpec:
        """Report twice the size."""
        effective = {**self._spec.effective, "block_size": 2 * self.cache.block_size}
        return replace(self._spec, effective=effective)


@mutant(
    "configured-size-declared",
    caught_by="units",
    kind="UNIT",
    killer="conformance/test_unit.py::test_one_block_size_everywhere",
    shown_by="a prompt longer than a block",
)
class ConfiguredSizeDeclared(ReferenceEngine):
    """Blocks are twice as large as the configured size, which is declared still."""

    def __init__(self, config: EngineConfig) -> None:
        super().__init__(replace(config, block_size=2 * config.block_size))
        (pool,) = self._spec.pools
        effective = {**self._spec.effective, "block_size": config.block_size}
        told = replace(pool, block_size=config.block_size)
        self._spec = replace(self._spec, pools=(told,), effective=effective)


@mutant(
    "hash-unit-undeclared",
    caught_by="units",
    kind="UNIT",
    killer="conformance/test_unit.py::test_hits_come_in_the_declared_unit",
    shown_by="a cached prompt of an odd number of blocks",
)
class HashUnitUndeclared(ReferenceEngine):
    """Keys stand for two blocks each, and are declared to stand for one."""

    def _prompt_keys(self, prompt: TokenRun) -> list[PrefixKey]:
        keys = super()._prompt_keys(prompt)
        return keys[: (prompt.stop - 1) // self.cache.block_size // 2 * 2]


@mutant(
    "smallest-size-for-all-groups",
    caught_by="units",
    kind="UNIT",
    killer="conformance/test_unit.py::test_every_group_reports_its_own_size",
    shown_by="groups of other block sizes",
)
class SmallestSizeForAllGroups(GroupsEngine):
    """Every group is reported with the smallest block size of all."""

    @property
    def spec(self) -> EngineSpec:
        """Report one size."""
        spec = super().spec
        smallest = min(pool.block_size for pool in spec.pools)
        return replace(spec, pools=tuple(replace(pool, block_size=smallest) for pool in spec.pools))


@mutant(
    "default-not-named",
    caught_by="drift",
    kind="UNIT",
    killer="conformance/test_unit.py::test_another_size_is_named_among_the_effective_values",
    shown_by="two block sizes with as many blocks",
)
class DefaultNotNamed(ReferenceEngine):
    """The block size in force does not stand among the effective values."""

    @property
    def spec(self) -> EngineSpec:
        """Leave the block size out."""
        effective = {name: value for name, value in self._spec.effective.items() if name != "block_size"}
        return replace(self._spec, effective=effective)
