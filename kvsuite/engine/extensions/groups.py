"""Layers in groups: a pool a group, with its own block size, and one answer for all of them.

    group 0   full     b      layers 0, 2, ...        one kernel with blocks of b serves every group:
    group 1   window   2b     layers 1, 3, ...        a block of 2b is two kernel blocks
    group 2   full     8b     with option third_group

A sequence is taken in, or grows, when every group has the blocks for it; else nothing changes in any. A
prefix counts as found as far as all groups hold it, in multiples of the largest block. Windows are priced at
what they come to hold, ``ceil((W + c - 2) / b) + 1`` blocks for steps of ``c`` tokens, and never at full
length (vllm #55800).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import lcm
from typing import TYPE_CHECKING

import numpy as np

from kvsuite.engine.contract import NO_OPS, Admission, Capability, EngineSpec, Ops
from kvsuite.engine.extensions.group_members import FullGroup, WindowGroup
from kvsuite.engine.extensions.window import NULL
from kvsuite.engine.snapshot import PoolKey
from kvsuite.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvsuite.engine.config import EngineConfig
    from kvsuite.engine.contract import Release
    from kvsuite.engine.snapshot import Int64Array, PoolSnapshot
    from kvsuite.trace.model import RequestId
    from kvsuite.trace.tokens import TokenRun


@dataclass(frozen=True, slots=True)
class _Plan:
    """How one group is opened."""

    engine: type[FullGroup]
    blocks_of: int
    """Its block size in blocks of the first group."""
    num_blocks: int
    options: dict[str, int | str | bool]


class GroupsEngine:
    """Groups of layers with block sizes b (full), 2b (sliding window) and, if asked for, 8b (full).

    Layers are dealt out in turn; a group without layers has no pool. Options: ``third_group`` (default
    False), ``window_tokens`` (default: 4 blocks of b), ``window_blocks`` (default: one more than
    ``num_blocks``, with which no window limits), and those of the reference for the first group. It says
    which slots its kernel is given.

    **Raises:** `ConfigError` for an unknown option or a window below 2 tokens.
    """

    name = "reference-groups"
    full_group: type[FullGroup] = FullGroup
    window_group: type[WindowGroup] = WindowGroup

    def __init__(self, config: EngineConfig) -> None:
        self.groups = self._open(config)
        self.unit_tokens = lcm(*(group.cache.block_size for group in self.groups))
        self._kernel_block_size = config.block_size
        self._launched: dict[RequestId, int] = {}
        self._spec = self._describe(config)

    @property
    def spec(self) -> EngineSpec:
        """Who the engine is and what it claims; constant."""
        return self._spec

    def admit(
        self,
        request_id: RequestId,
        prompt: TokenRun,
        *,
        first_chunk_tokens: int,
        max_tokens: int | None = None,
    ) -> Admission:
        """Take a sequence into every group, or refuse it in the first that is short and change nothing."""
        found = self._found(prompt)
        for group in self.groups:
            group.found_tokens = found
        for group in self.groups:
            refused = group.gate(prompt, first_chunk_tokens)
            if refused is not None:
                return refused
        answers = [
            group.admit(request_id, prompt, first_chunk_tokens=first_chunk_tokens, max_tokens=max_tokens)
            for group in self.groups
        ]
        self._launched[request_id] = answers[0].hit_tokens
        return answers[0]

    def extend(self, request_id: RequestId, tokens: TokenRun, *, lookahead_tokens: int = 0) -> bool:
        """Take slots in every group, or in none."""
        if not all(group.cache.has_room(request_id, len(tokens)) for group in self.groups):
            return False
        for group in self.groups:
            group.extend(request_id, tokens, lookahead_tokens=lookahead_tokens)
        return True

    def fork(self, parent_id: RequestId, child_id: RequestId) -> bool:
        """Make ``child_id`` a sequence that shares every block of ``parent_id``; never refused."""
        for group in self.groups:
            group.fork(parent_id, child_id)
        self._launched[child_id] = self._launched[parent_id]
        return True

    def release(self, request_id: RequestId, reason: Release) -> None:
        """Give back what the sequence holds in every group."""
        for group in self.groups:
            group.release(request_id, reason)
        del self._launched[request_id]

    def take_ops(self) -> Ops:
        """Return, once, the copies of every group."""
        copies = tuple(
            replace(copy, pool=group.key) for group in self.groups for copy in group.take_ops().copies
        )
        return Ops(copies) if copies else NO_OPS

    def launched(self, step: int) -> None:
        """Learn that every token given so far is being written."""
        del step
        tables = self.groups[0].cache.tables
        self._launched = {request_id: tables[request_id].length for request_id in self._launched}

    def done(self, step: int, accepted: Mapping[RequestId, int]) -> None:
        """Publish what the step has filled, and let the windows slide."""
        for group in self.groups:
            group.done(step, accepted)

    def reset_cache(self) -> bool:
        """Forget every cached block; False: refused because sequences are live."""
        return all(group.reset_cache() for group in self.groups)

    def snapshot(self, since: int | None = None) -> tuple[PoolSnapshot, ...]:
        """Return every group's pool."""
        return tuple(shot for group in self.groups for shot in group.snapshot(since))

    def read_slots(self, request_id: RequestId) -> tuple[Int64Array, ...]:
        """Return the kernel's slots of every token that the sequence still holds, a pool each."""
        return tuple(self._slots(group, request_id, 0) for group in self.groups)

    def write_slots(self, request_id: RequestId) -> tuple[Int64Array, ...]:
        """Return the kernel's slots of the tokens taken since the last step was launched."""
        start = self._launched[request_id]
        return tuple(self._slots(group, request_id, start) for group in self.groups)

    def _slots(self, group: FullGroup, request_id: RequestId, start: int) -> Int64Array:
        """Return slots from token ``start`` on: every block of the table cut into kernel blocks."""
        table, kernel = group.cache.tables[request_id], self._kernel_block_size
        blocks = np.frombuffer(table.blocks, np.int32).astype(np.int64)
        kernel_blocks = self._kernel_blocks(blocks, group.cache.block_size // kernel)
        slots = (kernel_blocks[:, None] * kernel + np.arange(kernel)).ravel()
        let_go = 0
        if isinstance(group, WindowGroup):
            let_go = int(np.count_nonzero(blocks == NULL)) * group.cache.block_size
        return slots[max(start, let_go) : table.length]

    @staticmethod
    def _kernel_blocks(blocks: Int64Array, parts: int) -> Int64Array:
        return (blocks[:, None] * parts + np.arange(parts)).ravel()

    def _found(self, prompt: TokenRun) -> int:
        for group in self.groups:
            group.found_tokens = prompt.stop
        return min(group.found(prompt) for group in self.groups) // self.unit_tokens * self.unit_tokens

    def _plans(self, config: EngineConfig) -> list[_Plan]:
        options = dict(config.options)
        third = options.pop("third_group", False)
        window = {
            "window_tokens": options.pop("window_tokens", max(2, 4 * config.block_size)),
            "lookahead_tokens": 0,
        }
        window_blocks = options.pop("window_blocks", config.num_blocks + 1)
        if not isinstance(third, bool) or not isinstance(window_blocks, int) or window_blocks < 2:
            raise ConfigError(
                f"{self.name}: third_group is {third!r}, expected True or False; window_blocks is "
                f"{window_blocks!r}, expected 2 or more"
            )
        plans = [
            _Plan(self.full_group, 1, config.num_blocks, options),
            _Plan(self.window_group, 2, window_blocks, window),
        ]
        return [*plans, _Plan(self.full_group, 8, config.num_blocks, {})] if third else plans

    def _open(self, config: EngineConfig) -> tuple[FullGroup, ...]:
        plans = self._plans(config)
        groups: list[FullGroup] = []
        for turn, plan in enumerate(plans):
            layers = len(range(turn, config.layout.num_layers, len(plans)))
            if layers == 0:
                continue
            group = plan.engine(
                replace(
                    config,
                    layout=config.layout.with_(num_layers=layers),
                    block_size=plan.blocks_of * config.block_size,
                    num_blocks=plan.num_blocks,
                    options=plan.options,
                )
            )
            group.key = PoolKey(group=len(groups))
            groups.append(group)
        return tuple(groups)

    def _describe(self, config: EngineConfig) -> EngineSpec:
        first = self.groups[0].spec
        pools = tuple(
            replace(
                group.spec.pools[0],
                key=group.key,
                kernel_block_size=self._kernel_block_size,
                hash_block_size=self.unit_tokens,
            )
            for group in self.groups
        )
        windows = [pool.window_tokens for pool in pools if pool.window_tokens is not None]
        return replace(
            first,
            name=self.name,
            pools=pools,
            capabilities=first.capabilities | {Capability.GROUPS, Capability.SLOTS},
            effective={
                **first.effective,
                "group_block_sizes": " ".join(str(pool.block_size) for pool in pools),
                "group_windows": " ".join(map(str, windows)),
                "hash_block_size": self.unit_tokens,
            },
            layout=str(config.layout),
        )
