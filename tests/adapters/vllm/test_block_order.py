"""What explains drift between vLLM releases stands among the values they run with.

Source: ``BlockPool.free_blocks`` of each release. 0.23.0 appends what is given back; 0.24.0 puts blocks
without a hash first; 0.27.1 does so only with caching on; 0.28.0 again always.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvsuite.engine.contract import Engine

CACHING = {
    "0.23.0": ("fifo", "in_turn"),
    "0.24.0": ("lifo", "after_free"),
    "0.27.1": ("lifo", "after_free"),
    "0.28.0": ("lifo", "after_free"),
}
PLAIN = {"0.23.0": "fifo", "0.24.0": "lifo", "0.27.1": "fifo", "0.28.0": "lifo"}


@pytest.mark.parametrize("block_size", [1, 16])
@pytest.mark.parametrize("version", CACHING)
def test_order_with_prefix_cache(vllm: Callable[..., Engine], version: str, block_size: int) -> None:
    effective = vllm(version, block_size=block_size, num_blocks=8).spec.effective
    assert (effective["free_order"], effective["eviction"]) == CACHING[version]


@pytest.mark.parametrize("version", PLAIN)
def test_order_without(vllm: Callable[..., Engine], version: str) -> None:
    effective = vllm(version, block_size=16, num_blocks=8, prefix_cache=False).spec.effective
    assert (effective["free_order"], effective.get("eviction")) == (PLAIN[version], None)
