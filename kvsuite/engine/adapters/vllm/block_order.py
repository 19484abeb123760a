"""In which order a vLLM hands out blocks that were given back, found out on a small pool of the same release.

Releases change it without a word, so it is neither asked for nor looked up by version.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kvsuite.engine.adapters.vllm.manager import BlockManager
from kvsuite.trace.model import RequestId

if TYPE_CHECKING:
    from kvsuite.engine.adapters.vllm.loading import VllmCore
    from kvsuite.engine.config import EngineConfig

_BLOCKS = 5


def block_order(core: VllmCore, config: EngineConfig) -> dict[str, str]:
    """Return ``free_order`` and, where prefixes are cached, ``eviction`` of ``core``.

    ``free_order`` is ``lifo`` where a block without content is handed out again before those that were never
    used, else ``fifo``. ``eviction`` is ``after_free`` where a cached block stays until all blocks without
    content are used, even one given back later than it, else ``in_turn``.
    """
    small = replace(config, num_blocks=_BLOCKS, watermark_blocks=0)
    manager = BlockManager(core, small, max_model_tokens=_BLOCKS * config.block_size)
    empty = _empty_block(manager)
    order = {"free_order": "lifo" if _queue(manager)[0] == empty else "fifo"}
    if config.prefix_cache:
        cached = _cached_block(manager, config.block_size)
        empty = _empty_block(manager)
        queue = _queue(manager)
        order["eviction"] = "after_free" if queue.index(empty) < queue.index(cached) else "in_turn"
    return order


def _empty_block(manager: BlockManager) -> int:
    """Take a block, give it back without content, and return it."""
    (block,) = manager.pool.get_new_blocks(1)
    manager.pool.free_blocks([block])
    return int(block.block_id)


def _cached_block(manager: BlockManager, block_size: int) -> int:
    """Compute a prompt of one block, let it go, and return the block."""
    request = manager.request(RequestId("probe"), [*range(block_size)], "")
    found, hit_tokens = manager.find(request)
    manager.admit(request, found, hit_tokens, block_size, beside=False)
    (block,) = manager.table(RequestId("probe"))
    number = int(block.block_id)
    manager.free(request)
    return number


def _queue(manager: BlockManager) -> list[int]:
    """Return the blocks that can be handed out, the next one first."""
    return [block.block_id for block in manager.pool.free_block_queue.get_all_free_blocks()]
