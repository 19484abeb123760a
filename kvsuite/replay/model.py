"""An independent model of what an engine holds, from what it was asked and what it answered.

It knows lengths and contents, never blocks: closed forms follow from these where they exist (a table of
``ceil(n / b)`` entries, at least one block for each different content), and bounds where engines may differ.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd
from typing import TYPE_CHECKING

from kvsuite.engine.snapshot import PoolKind
from kvsuite.ledger.prefix_keys import ComputedPrefixes

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kvsuite.engine.contract import EngineSpec
    from kvsuite.engine.snapshot import PoolSpec
    from kvsuite.trace.model import RequestId
    from kvsuite.trace.tokens import TokenContent, TokenRun


EARLY_KEYS = "prefix_keys"
"""Effective value that is ``when_scheduled`` where a block can be found from the step that computes it on."""


@dataclass(slots=True)
class Held:
    """One live sequence: what its tokens are, how many have slots, and how many its prompt asks for.

    ``settled`` of them are computed.
    """

    content: TokenContent
    length: int
    target: int
    settled: int = 0


class LifecycleModel:
    """Live sequences, and every prefix that was ever computed and settled since the last reset."""

    def __init__(self, spec: EngineSpec) -> None:
        self.live: dict[RequestId, Held] = {}
        self._early = spec.effective.get(EARLY_KEYS) == "when_scheduled"
        sizes = (pool.hash_block_size or pool.block_size for pool in judged_pools(spec))
        self._computed = ComputedPrefixes(gcd(*sizes) or 1)

    def admit(self, request_id: RequestId, prompt: TokenRun, scheduled_tokens: int) -> None:
        """Learn that a prompt was admitted."""
        self.live[request_id] = Held(prompt.content, scheduled_tokens, prompt.stop)

    def extend(self, request_id: RequestId, tokens: TokenRun) -> None:
        """Learn that a sequence was extended."""
        held = self.live[request_id]
        held.content, held.length = tokens.content, tokens.stop
        held.target = max(held.target, tokens.stop)

    def fork(self, parent_id: RequestId, child_id: RequestId) -> None:
        """Learn that a sequence was forked."""
        parent = self.live[parent_id]
        self.live[child_id] = Held(parent.content, parent.length, parent.length)

    def release(self, request_id: RequestId) -> None:
        """Learn that a sequence is gone."""
        del self.live[request_id]

    def settle(self, request_id: RequestId, length: int) -> None:
        """Learn that the first ``length`` tokens of a sequence are computed."""
        held = self.live.get(request_id)
        if held is None:
            return
        held.length = min(held.length, length)
        self._computed.written(held.content, min(held.settled, length), length)
        held.settled = length

    def reset(self) -> None:
        """Learn that every cached prefix was forgotten."""
        self._computed = ComputedPrefixes(self._computed.unit)

    def longest_hit(self, prompt: TokenRun) -> int:
        """Return the most tokens of a prompt that can be found: settled before, its last token left out.

        An engine that says so in its effective values finds what live sequences have slots for too.
        """
        if not self._early:
            return self._computed.longest(prompt)
        computed = ComputedPrefixes(self._computed.unit, self._computed)
        for held in self.live.values():
            computed.written(held.content, 0, held.length)
        return computed.longest(prompt)

    def prefilling(self) -> bool:
        """Return whether some prompt is still to be computed, so that blocks may be promised to it."""
        return any(held.length < held.target for held in self.live.values())

    def distinct_contents(self, block_size: int) -> int:
        """Return the fewest blocks that can hold the live sequences: one for each different content.

        Two entries can share a block only where every token up to the end of what they fill is the same.
        """
        return len(
            {
                (end, held.content.prefix_key(end))
                for held in self.live.values()
                for end in _ends(held.length, block_size)
            }
        )

    def table_entries(self, block_size: int) -> int:
        """Return the most blocks that the live sequences can hold: the sum of ``ceil(n / b)``."""
        return sum(-(-held.length // block_size) for held in self.live.values())


def judged_pools(spec: EngineSpec) -> tuple[PoolSpec, ...]:
    """Return the pools of which the model knows what they hold: paged full attention on the device."""
    return tuple(
        pool
        for pool in spec.pools
        if pool.kind is PoolKind.FULL and not pool.contiguous and pool.key.tier == "device"
    )


def _ends(length: int, block_size: int) -> Iterable[int]:
    return (min(start + block_size, length) for start in range(0, length, block_size))
