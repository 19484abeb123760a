"""Prompts in chunks: a block that one of them has yet to take is nobody else's room.

Engines that look at the whole prompt when they admit it say so (effective value ``admission`` is
``whole_prompt``). As long as nobody decodes, no chunk of such a prompt is ever refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kvsuite.engine.contract import Capability
from kvsuite.engine.snapshot import PoolKind
from kvsuite.ledger.admission import chunk_granted

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvsuite.replay.scene import Scene

B = 4
NUM_BLOCKS = 8


@pytest.mark.requires(Capability.PAGED, Capability.CHUNKED_PREFILL)
@pytest.mark.parametrize("chunk", [B - 1, B, B + 1, B + 2])
def test_two_prompts_in_chunks_never_count_on_the_same_block(
    kv_scene: Callable[..., Scene], chunk: int
) -> None:
    """One prompt takes all blocks but one, by chunks: one of two blocks waits, and one of one block runs."""
    scene = kv_scene(block_size=B, num_blocks=NUM_BLOCKS, prefix_cache=False)
    pools = [pool for pool in scene.engine.spec.pools if pool.key.tier == "device"]
    if scene.engine.spec.effective.get("admission") != "whole_prompt":
        pytest.skip("promises nothing: the effective value `admission` is not `whole_prompt`")
    if len(pools) > 1 or pools[0].kind is not PoolKind.FULL:
        pytest.skip(f"{len(pools)} pools, the first {pools[0].kind.value}")
    tokens = (pools[0].usable_blocks - 2) * B + 1
    held = scene.admit("long", tokens, first_chunk=chunk).scheduled_tokens
    scene.step()
    early = scene.admit("two blocks", B + 1)
    scene.admit("one block", B)
    scene.step()
    while held < tokens:
        more = min(chunk, tokens - held)
        granted = scene.extend("long", more)
        scene.violations += chunk_granted(pools[0], "long", tokens, held, granted, scene.step_number)
        if not granted:
            break
        held += more
        scene.step()
    scene.drain()
    scene.judge()
    assert not early.accepted
    assert held == tokens
