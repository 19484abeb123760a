"""A host tier under the reference: idle keyed blocks are copied out, and loaded back when asked for again.

    release(r1)                 its keyed blocks become cached: each is offered to the host once
    take_ops()                  transfers device -> host begin; both ends are pinned
    transfer_done(ref, True)    the host block has the key; the device block is cached, and may be evicted
    admit(r2), same prompt      device misses, host has it: targets are taken, both ends pinned, LOADING
    take_ops(); transfer_done   the device block has the key; r2 asks again and finds it, if it is still there
    transfer_done(ref, False)   or its deadline, by `tick`: nothing is found, both blocks go back; a host copy
                                that could not be loaded is forgotten

Host blocks are never held by a sequence: each is free, cached, or pinned by one transfer.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from kvsuite.engine.contract import Admission, Capability, Ops, Refusal, RefusalReason, Transfer
from kvsuite.engine.extensions.host_tier import HOST, HostTier
from kvsuite.engine.extensions.pins import PinnedCache, with_pins
from kvsuite.engine.reference import POOL, ReferenceEngine
from kvsuite.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvsuite.engine.config import EngineConfig
    from kvsuite.engine.contract import Release
    from kvsuite.engine.snapshot import PoolSnapshot
    from kvsuite.trace.model import RequestId
    from kvsuite.trace.tokens import PrefixKey, TokenRun

_OPTIONS = {"host_blocks": 0, "transfer_deadline_us": 1_000_000}


@dataclass(frozen=True, slots=True)
class Chain:
    """The first ``stop`` blocks of what a request holds or asks for, by their keys."""

    request_id: RequestId
    keys: Sequence[PrefixKey]
    stop: int

    @property
    def key(self) -> PrefixKey:
        """Identity of the last of them."""
        return self.keys[self.stop - 1]


@dataclass(slots=True)
class Move:
    """A transfer under way, between one device block and one host block."""

    transfer: Transfer
    chain: Chain | None
    """``None`` once the cache was reset: the content is nobody's then."""
    deadline_us: int
    to_host: bool

    @property
    def device_block(self) -> int:
        """The end on the device."""
        return self.transfer.source if self.to_host else self.transfer.target

    @property
    def host_block(self) -> int:
        """The end on the host."""
        return self.transfer.target if self.to_host else self.transfer.source


class TieredCache(PinnedCache):
    """The device pool, with blocks taken for content that is on its way."""

    def found(self, num_tokens: int, keys: Sequence[PrefixKey]) -> int:
        """Return how many leading blocks of a prompt of ``num_tokens`` would be hits."""
        return len(self._hits(keys, (num_tokens - 1) // self.block_size))

    def take_targets(self, num_tokens: int, keys: Sequence[PrefixKey], count: int) -> list[int]:
        """Return ``count`` pinned blocks for the keys that follow the hits; none where there is no room.

        Hits are held meanwhile, so that they are not evicted for it.
        """
        hits = self._hits(keys, (num_tokens - 1) // self.block_size)
        if self._shortfall(self.blocks_for(num_tokens), hits) is not None:
            return []
        self.pin(hits)
        targets = self._take(count).tolist()
        self.unpin(hits[::-1])
        return targets

    def publish_block(self, block: int, key: PrefixKey) -> None:
        """Give a loaded block its key, if that is not taken by now."""
        if self.prefixes is not None:
            self.prefixes.publish(block, key)

    def is_idle(self, block: int, key: PrefixKey) -> bool:
        """Return whether a block is cached under ``key`` and in nobody's use."""
        held = bool(self._ref_counts[block])
        return not held and self.prefixes is not None and self.prefixes.key_of.get(block) == key

    def forget_blocks(self, blocks: Sequence[int]) -> None:
        """Take the keys of blocks away."""
        if self.prefixes is not None:
            self.prefixes.forget(blocks)


class TiersEngine(ReferenceEngine):
    """The reference with a host tier for what is idle on the device.

    Options ``host_blocks`` (default: as many as on the device) and ``transfer_deadline_us`` (default one
    second), after which a transfer counts as failed, whatever is answered later.

    **Raises:** `ConfigError` for a host tier without a block or a deadline that is not positive.
    """

    name = "reference-tiers"
    cache_type = TieredCache
    cache: TieredCache
    host_type: type[HostTier] = HostTier

    def __init__(self, config: EngineConfig) -> None:
        host_blocks, self._patience_us = _options(config)
        others = {name: value for name, value in config.options.items() if name not in _OPTIONS}
        super().__init__(replace(config, options=others))
        (device,) = self._spec.pools
        self.host = self.host_type(device, host_blocks)
        tier = {Capability.HOST_TIER} if config.prefix_cache else set()
        effective = {"host_blocks": host_blocks, "transfer_deadline_us": self._patience_us}
        self._spec = replace(
            self._spec,
            pools=(device, self.host.spec),
            capabilities=self._spec.capabilities | tier,
            effective={**self._spec.effective, **effective},
        )
        self._offers: dict[int, Chain] = {}
        self._begun: list[Transfer] = []
        self._moves: dict[int, Move] = {}
        self._next_ref = 0
        self._now_us = 0

    def admit(
        self,
        request_id: RequestId,
        prompt: TokenRun,
        *,
        first_chunk_tokens: int,
        max_tokens: int | None = None,
    ) -> Admission:
        """Take a sequence in, or load what the host has of it first and answer LOADING."""
        if self._load(request_id, prompt):
            needed = self.cache.blocks_for(prompt.stop)
            pool = self.cache.pool
            return Admission(
                refusal=Refusal(needed, pool.num_free, pool.num_cached, POOL, RefusalReason.LOADING)
            )
        return super().admit(request_id, prompt, first_chunk_tokens=first_chunk_tokens, max_tokens=max_tokens)

    def release(self, request_id: RequestId, reason: Release) -> None:
        """Give back what the sequence holds, and offer what became idle to the host, the tail first."""
        table, keys = self.cache.tables.get(request_id), self._keys.get(request_id, [])
        blocks = [] if table is None else table.blocks.tolist()
        super().release(request_id, reason)
        for index in reversed(range(min(len(blocks), len(keys)))):
            if self.cache.is_idle(blocks[index], keys[index]):
                self._offers[blocks[index]] = Chain(request_id, keys, index + 1)

    def forget(self, request_id: RequestId) -> None:
        """Nothing is held for a request that waits: loads under way end by themselves."""

    def take_ops(self) -> Ops:
        """Return copies, and the transfers that begin now."""
        ops = super().take_ops()
        offers, self._offers = self._offers, {}
        for block, chain in offers.items():
            self._store(block, chain)
        begun, self._begun = self._begun, []
        return replace(ops, transfers=tuple(begun)) if begun else ops

    def transfer_done(self, ref: int, ok: bool) -> None:
        """End a transfer; one that is past its deadline has ended before, and changes nothing."""
        move = self._moves.pop(ref, None)
        if move is None:
            return
        self._begun = [transfer for transfer in self._begun if transfer.ref != ref]
        if ok and move.chain is not None:
            self._arrive(move, move.chain)
        elif not move.to_host:
            self.host.forget([move.host_block])
        self._release_ends(move)
        if move.to_host and ok and move.chain is not None:
            self.host.touch_parents(move.chain.keys, move.chain.stop)

    def tick(self, now_us: int) -> None:
        """Fail every transfer whose deadline has come."""
        self._now_us = now_us
        for ref in [ref for ref, move in self._moves.items() if move.deadline_us <= now_us]:
            self.transfer_done(ref, ok=False)

    def reset_cache(self) -> bool:
        """Forget every cached block of both tiers, and what transfers under way would bring."""
        if not super().reset_cache():
            return False
        for move in self._moves.values():
            self.cache.forget_blocks([move.device_block])
            self.host.forget([move.host_block])
            move.chain = None
        self._offers.clear()
        self.host.forget_idle()
        return True

    def snapshot(self, since: int | None = None) -> tuple[PoolSnapshot, ...]:
        """Return both pools in full, with the pins of transfers under way."""
        del since
        (device,) = super().snapshot()
        host = self.host.snapshot(device.revision)
        return with_pins(device, self._device_pins()), with_pins(host, self._host_pins())

    def _load(self, request_id: RequestId, prompt: TokenRun) -> bool:
        """Return whether the request must wait for blocks of its prompt; begins to load what is missing."""
        keys = self._prompt_keys(prompt)
        limit = min(len(keys), (prompt.stop - 1) // self.cache.block_size)
        found = self.cache.found(prompt.stop, keys)
        coming = {m.chain.key for m in self._moves.values() if m.chain is not None and not m.to_host}
        if found < limit and keys[found] in coming:
            return True
        sources = self.host.match(keys[found:limit])
        if not sources:
            return False
        targets = self.cache.take_targets(prompt.stop, keys, len(sources))
        for index in reversed(range(len(targets))):
            self.host.pin(sources[index])
            chain = Chain(request_id, keys, found + index + 1)
            self._begin(chain, sources[index], targets[index], to_host=False)
        return bool(targets)

    def _store(self, block: int, chain: Chain) -> None:
        if not self.cache.is_idle(block, chain.key):
            return
        if self.host.touch(chain.key):
            return
        target = self.host.take()
        if target is not None:
            self.cache.pin([block])
            self._begin(chain, block, target, to_host=True)

    def _begin(self, chain: Chain, source: int, target: int, *, to_host: bool) -> None:
        pools = (POOL, HOST) if to_host else (HOST, POOL)
        size = self.cache.block_size
        transfer = Transfer(self._next_ref, pools[0], source, pools[1], target, size, chain.request_id)
        self._moves[self._next_ref] = Move(transfer, chain, self._now_us + self._patience_us, to_host)
        self._begun.append(transfer)
        self._next_ref += 1

    def _device_pins(self) -> list[int]:
        return [move.device_block for move in self._moves.values()]

    def _host_pins(self) -> list[int]:
        return [move.host_block for move in self._moves.values()]

    def _release_ends(self, move: Move) -> None:
        self.cache.unpin([move.device_block])
        self.host.unpin(move.host_block)

    def _arrive(self, move: Move, chain: Chain) -> None:
        if move.to_host:
            self.host.publish(move.host_block, chain.key)
        else:
            self.cache.publish_block(move.device_block, chain.key)


def _options(config: EngineConfig) -> tuple[int, int]:
    given = {name: config.options.get(name, default) for name, default in _OPTIONS.items()}
    if "host_blocks" not in config.options:
        given["host_blocks"] = config.num_blocks
    for name, value in given.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ConfigError(f"{TiersEngine.name} engine: {name} is {value!r}, expected 1 or more")
    return int(given["host_blocks"]), int(given["transfer_deadline_us"])
