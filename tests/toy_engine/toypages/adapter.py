"""The adapter: kvsuite's verbs on one side, `PageManager` on the other."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kvsuite.engine.contract import (
    Admission,
    BlockCopy,
    Capability,
    EngineSpec,
    Ops,
    Refusal,
    RefusalReason,
    Release,
)
from kvsuite.engine.snapshot import PoolKey, PoolSnapshot, PoolSpec
from kvsuite.errors import ConfigError
from kvsuite.trace.model import RequestId
from toypages.pages import NULL_PAGE, PageManager, PoolFull

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvsuite.engine.config import EngineConfig
    from kvsuite.trace.tokens import TokenRun

POOL = PoolKey()
VOCABULARY = 50_000
CLAIMS = frozenset(
    {
        Capability.PAGED,
        Capability.FORK,
        Capability.COPY_ON_WRITE,
        Capability.CHUNKED_PREFILL,
        Capability.PREEMPTION,
        Capability.RESET_CACHE,
    }
)


class ToyPages:
    """A toy page manager: pages shared by hash, forks that copy at once, page 0 kept as the null page."""

    name = "toypages"
    manager_type: type[PageManager] = PageManager

    def __init__(self, config: EngineConfig) -> None:
        for option, value in config.options.items():
            if (option, value) != ("null_blocks", 1):
                raise ConfigError(f"toypages has one null page and no options: {option}={value} is refused")
        if config.num_blocks < 2:
            raise ConfigError(f"{config.num_blocks} pages: toypages needs its null page and one more")
        self.pages = self.manager_type(config.num_blocks, config.block_size, share=config.prefix_cache)
        self.spec = _spec(self.name, config)
        self.revision = 0

    def admit(
        self,
        request_id: RequestId,
        prompt: TokenRun,
        *,
        first_chunk_tokens: int,
        max_tokens: int | None = None,
    ) -> Admission:
        """Open a stream; the page manager finds shared pages by the prompt's token ids and scope."""
        del max_tokens
        try:
            found = self.pages.open(request_id, _ids(prompt), first_chunk_tokens, prompt.scope.encode())
        except PoolFull as full:
            return Admission(refusal=self._refusal(full))
        return Admission(hit_tokens=found, scheduled_tokens=self.pages.streams[request_id].filled)

    def extend(self, request_id: RequestId, tokens: TokenRun, *, lookahead_tokens: int = 0) -> bool:
        """Append to a stream; look-ahead is not claimed and never asked for."""
        del lookahead_tokens
        return self.pages.append(request_id, _ids(tokens))

    def fork(self, parent_id: RequestId, child_id: RequestId) -> bool:
        """Duplicate a stream; refused where there is no page for the copy."""
        return self.pages.duplicate(parent_id, child_id)

    def release(self, request_id: RequestId, reason: Release) -> None:
        """Close a stream, whatever the reason."""
        del reason
        self.pages.close(request_id)

    def take_ops(self) -> Ops:
        """Hand the pending copies over."""
        copies = (
            BlockCopy(POOL, c.source, c.target, c.tokens, RequestId(c.name)) for c in self.pages.copies()
        )
        return Ops(tuple(copies))

    def launched(self, step: int) -> None:
        """Nothing happens here: a step is settled before the next one."""

    def done(self, step: int, accepted: Mapping[RequestId, int]) -> None:
        """Seal what the step has written."""
        del step
        for request_id, length in accepted.items():
            self.pages.seal(request_id, length)

    def reset_cache(self) -> bool:
        """Forget the idle pages; refused while a stream is open."""
        if self.pages.streams:
            return False
        self.pages.forget_idle()
        return True

    def snapshot(self, since: int | None = None) -> tuple[PoolSnapshot, ...]:
        """Return everything, whatever was seen before."""
        del since
        self.revision += 1
        streams = list(self.pages.streams.values())
        held = np.flatnonzero(np.array(self.pages.holders)).astype(np.int32)
        return (
            PoolSnapshot(
                key=POOL,
                revision=self.revision,
                since=None,
                request_ids=tuple(RequestId(name) for name in self.pages.streams),
                lengths=np.array([stream.filled for stream in streams], np.int64),
                table_rows=np.arange(len(streams), dtype=np.int32),
                table_offsets=np.cumsum([0, *(len(stream.pages) for stream in streams)], dtype=np.int64),
                table_blocks=np.array([page for stream in streams for page in stream.pages], np.int32),
                free=np.array(self.pages.free, np.int32),
                cached=np.array(list(self.pages.idle), np.int32),
                never_allocatable=np.array([NULL_PAGE], np.int32),
                ref_count_ids=held,
                ref_counts=np.array(self.pages.holders, np.int32)[held],
            ),
        )

    def _refusal(self, full: PoolFull) -> Refusal:
        reason = RefusalReason.PROMISED if full.wanted <= full.free + full.idle else RefusalReason.NO_BLOCKS
        if full.pages > self.spec.pools[0].usable_blocks:
            reason = RefusalReason.NEVER_FITS
        return Refusal(full.wanted, full.free, full.idle, POOL, reason)


def _ids(run: TokenRun) -> bytes:
    return run.token_ids(VOCABULARY).tobytes()


def _spec(name: str, config: EngineConfig) -> EngineSpec:
    layout = config.layout
    pool = PoolSpec(
        key=POOL,
        num_blocks=config.num_blocks,
        block_size=config.block_size,
        bytes_per_token=layout.bytes_per_token,
        pad_bytes_per_block=layout.pad_bytes_per_block(config.block_size),
        never_allocatable_blocks=1,
    )
    return EngineSpec(
        name=name,
        version="0.3",
        adapter_version=1,
        pools=(pool,),
        capabilities=CLAIMS | ({Capability.PREFIX_CACHE} if config.prefix_cache else set()),
        effective={
            "block_size": config.block_size,
            "num_blocks": config.num_blocks,
            "null_blocks": 1,
            "prefix_cache": config.prefix_cache,
            "cow": "at_fork",
        },
        layout=str(layout),
        dtype=layout.dtype.value,
    )
