"""The reference engine: the contract over `kvsuite.cache.paged.PagedCache`, with nothing hidden.

One pool, lazy copy-on-write, whole-prompt admission, chained prefix keys that are published when a step is
settled, least-recently-used eviction. Every value it runs with stands in ``EngineSpec.effective``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import numpy as np

from kvsuite.cache.paged import Admitted, PagedCache, Shortfall
from kvsuite.engine.contract import (
    NO_OPS,
    Admission,
    BlockCopy,
    Capability,
    EngineSpec,
    Ops,
    Refusal,
    RefusalReason,
    Release,
)
from kvsuite.engine.snapshot import NO_BLOCKS, PoolKey, PoolSnapshot, PoolSpec
from kvsuite.errors import ConfigError, EngineError
from kvsuite.trace.model import RequestId

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from kvsuite.engine.config import EngineConfig
    from kvsuite.engine.snapshot import Int32Array, Int64Array
    from kvsuite.trace.tokens import PrefixKey, TokenContent, TokenRun

POOL = PoolKey()
VERSION = "1"
"""Raised when the engine allocates otherwise: goldens are kept by it, whatever kvsuite's own version."""
_OPTIONS = {"null_blocks": 0, "index_bits": 64}
_CAPABILITIES = frozenset(
    {
        Capability.PAGED,
        Capability.FORK,
        Capability.COPY_ON_WRITE,
        Capability.CHUNKED_PREFILL,
        Capability.PREEMPTION,
        Capability.RESET_CACHE,
    }
)


class ReferenceEngine:
    """A paged engine as it should be; the mutants differ from it in one fault each.

    Option ``null_blocks`` (default 0) keeps the first blocks back, as engines with a null block do;
    ``index_bits`` (default 64) is the width of the integers that address an element of the pool.

    **Raises:** `ConfigError` for an unknown option, a pool without a usable block or one that its indices
    cannot address; `BlockError` and `EngineError` when it is driven against the contract.
    """

    name = "reference"
    cache_type: type[PagedCache] = PagedCache

    def __init__(self, config: EngineConfig) -> None:
        null_blocks = _option(config, "null_blocks")
        self.cache = self.cache_type(
            config.num_blocks,
            config.block_size,
            prefix_cache=config.prefix_cache,
            watermark_blocks=config.watermark_blocks,
            never_allocatable_blocks=null_blocks,
        )
        self._spec = _spec(self.name, config, null_blocks)
        self._never_allocatable = np.arange(null_blocks, dtype=np.int32)
        self._prefix_cache = config.prefix_cache
        self._contents: dict[RequestId, TokenContent] = {}
        self._keys: dict[RequestId, list[PrefixKey]] = {}
        self._next_full: dict[RequestId, int] = {}
        self._refused: tuple[TokenRun, list[PrefixKey]] | None = None
        self._revision = 0

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
        """Take a sequence in, or refuse it and change nothing; ``max_tokens`` is not needed here."""
        del max_tokens
        keys = self._prompt_keys(prompt)
        answer = self.cache.admit(request_id, prompt.stop, first_chunk_tokens=first_chunk_tokens, keys=keys)
        if isinstance(answer, Shortfall):
            self._refused = (prompt, keys)
            return Admission(refusal=self._refusal(answer))
        self._refused = None
        self._contents[request_id] = prompt.content
        self._keys[request_id] = keys
        self._next_full[request_id] = answer.hit_tokens + self.cache.block_size
        return self._admission(answer)

    def extend(self, request_id: RequestId, tokens: TokenRun, *, lookahead_tokens: int = 0) -> bool:
        """Take slots for ``tokens``, which follow what the sequence has; all or nothing."""
        if lookahead_tokens:
            raise EngineError(f"{request_id}: {lookahead_tokens} look-ahead tokens asked, none are claimed")
        table = self.cache.tables.get(request_id)
        if table is not None and table.length != tokens.start:
            raise EngineError(
                f"{request_id} holds {table.length} tokens and is extended from {tokens.start}: "
                "tokens must follow what the sequence has"
            )
        if not self.cache.extend(request_id, tokens.stop - tokens.start):
            return False
        self._contents[request_id] = tokens.content
        return True

    def fork(self, parent_id: RequestId, child_id: RequestId) -> bool:
        """Make ``child_id`` a sequence that shares every block of ``parent_id``; never refused."""
        self.cache.fork(parent_id, child_id)
        self._contents[child_id] = self._contents[parent_id]
        settled_blocks = self.cache.tables[child_id].published_blocks
        self._keys[child_id] = self._keys[parent_id][:settled_blocks]
        self._next_full[child_id] = self._next_full[parent_id]
        return True

    def release(self, request_id: RequestId, reason: Release) -> None:
        """Give back what the sequence holds; every reason is treated alike."""
        del reason
        self.cache.release(request_id)
        del self._contents[request_id], self._keys[request_id], self._next_full[request_id]

    def take_ops(self) -> Ops:
        """Return, once, the copies to be done before this step's writes."""
        copies = self.cache.take_copies()
        if not copies:
            return NO_OPS
        return Ops(
            tuple(BlockCopy(POOL, c.source, c.target, c.num_tokens, RequestId(c.sequence)) for c in copies)
        )

    def launched(self, step: int) -> None:
        """Nothing to do: a step is settled before the next one is driven."""

    def done(self, step: int, accepted: Mapping[RequestId, int]) -> None:
        """Publish the keys of blocks that the step has filled."""
        del step
        if not self._prefix_cache:
            return
        next_full = self._next_full
        for request_id, length in accepted.items():
            if length >= next_full.get(request_id, 0):
                self._publish(request_id, length)

    def reset_cache(self) -> bool:
        """Forget every cached block; False: refused because sequences are live."""
        return self.cache.reset_prefixes()

    def snapshot(self, since: int | None = None) -> tuple[PoolSnapshot, ...]:
        """Return the pool: what changed when ``since`` is the last revision given out, else all of it."""
        changed_only = since is not None and since == self._revision
        self._revision += 1
        request_ids = cast("tuple[RequestId, ...]", tuple(self.cache.tables))
        changed = self.cache.take_changed()
        rows, offsets, table_blocks = self._tables(request_ids, changed if changed_only else request_ids)
        blocks = self.cache.pool.take_changes() if changed_only else self.cache.pool.take_all()
        return (
            PoolSnapshot(
                key=POOL,
                revision=self._revision,
                since=since if changed_only else None,
                request_ids=request_ids,
                lengths=np.array([table.length for table in self.cache.tables.values()], np.int64),
                table_rows=rows,
                table_offsets=offsets,
                table_blocks=table_blocks,
                free=blocks.free,
                cached=blocks.cached,
                live=blocks.live if changed_only else NO_BLOCKS,
                never_allocatable=self._never_allocatable,
                ref_count_ids=blocks.counted,
                ref_counts=blocks.ref_counts,
            ),
        )

    def _tables(
        self, request_ids: tuple[RequestId, ...], wanted: Collection[str]
    ) -> tuple[Int32Array, Int64Array, Int32Array]:
        tables = self.cache.tables
        rows = [row for row, request_id in enumerate(request_ids) if request_id in wanted]
        chosen = [tables[request_ids[row]].blocks for row in rows]
        offsets = np.zeros(len(rows) + 1, np.int64)
        np.cumsum([len(blocks) for blocks in chosen], out=offsets[1:])
        return np.array(rows, np.int32), offsets, np.frombuffer(b"".join(chosen), np.int32)

    def _prompt_keys(self, prompt: TokenRun) -> list[PrefixKey]:
        if not self._prefix_cache:
            return []
        if self._refused is not None and self._refused[0] == prompt:
            return self._refused[1]
        return prompt.block_keys(self.cache.block_size)

    def _publish(self, request_id: RequestId, length: int) -> None:
        size = self.cache.block_size
        full = length // size
        table = self.cache.tables.get(request_id)
        if table is None:
            raise EngineError(
                f"{request_id} is settled at {length} tokens but not live: settle before release"
            )
        keys, content = self._keys[request_id], self._contents[request_id]
        keys.extend(content.prefix_key((block + 1) * size) for block in range(len(keys), full))
        self.cache.publish(request_id, keys[table.published_blocks : full])
        self._next_full[request_id] = (full + 1) * size

    def _refusal(self, short: Shortfall) -> Refusal:
        return Refusal(
            needed_blocks=short.needed_blocks,
            free_blocks=short.free_blocks,
            reclaimable_blocks=short.reclaimable_blocks,
            pool=POOL,
            reason=_reason(short),
        )

    @staticmethod
    def _admission(answer: Admitted) -> Admission:
        return Admission(hit_tokens=answer.hit_tokens, scheduled_tokens=answer.scheduled_tokens)


def _reason(short: Shortfall) -> RefusalReason:
    if short.never_fits:
        return RefusalReason.NEVER_FITS
    spare = short.free_blocks + short.reclaimable_blocks - short.needed_blocks
    if spare < 0:
        return RefusalReason.NO_BLOCKS
    return RefusalReason.PROMISED if spare < short.promised_blocks else RefusalReason.WATERMARK


def _option(config: EngineConfig, name: str) -> int:
    unknown = sorted(set(config.options) - _OPTIONS.keys())
    if unknown:
        expected = " or ".join(_OPTIONS)
        raise ConfigError(f"reference engine: unknown option {unknown[0]!r}, expected {expected}")
    value = config.options.get(name, _OPTIONS[name])
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ConfigError(f"reference engine: {name} is {value!r}, expected a number from 0 up")
    return value


def _refuse_beyond_index(pool: PoolSpec, itemsize: int) -> None:
    elements = pool.block_bytes // itemsize
    limit = (2 ** (pool.index_bits - 1) - 1) // elements if pool.index_bits > 0 else 0
    if pool.num_blocks > limit:
        raise ConfigError(
            f"{pool.num_blocks} blocks of {elements} elements are more than {pool.index_bits}-bit indices "
            f"address: at most {limit} blocks; take wider indices or a smaller pool"
        )


def _spec(name: str, config: EngineConfig, null_blocks: int) -> EngineSpec:
    layout = config.layout
    pool = PoolSpec(
        key=POOL,
        num_blocks=config.num_blocks,
        block_size=config.block_size,
        bytes_per_token=layout.bytes_per_token,
        pad_bytes_per_block=layout.pad_bytes_per_block(config.block_size),
        never_allocatable_blocks=null_blocks,
        index_bits=_option(config, "index_bits"),
    )
    _refuse_beyond_index(pool, layout.dtype.itemsize)
    prefix = {Capability.PREFIX_CACHE} if config.prefix_cache else set()
    return EngineSpec(
        name=name,
        version=VERSION,
        adapter_version=1,
        pools=(pool,),
        capabilities=_CAPABILITIES | prefix,
        effective={
            "block_size": config.block_size,
            "num_blocks": config.num_blocks,
            "null_blocks": null_blocks,
            "prefix_cache": config.prefix_cache,
            "watermark_blocks": config.watermark_blocks,
            "admission": "whole_prompt",
            "cow": "lazy",
            "eviction": "lru",
            "free_list": "lifo",
            **({"index_bits": pool.index_bits} if "index_bits" in config.options else {}),
        },
        layout=str(layout),
        dtype=layout.dtype.value,
    )
