"""What the adapter says where openvino-genai is not there, and what it makes of a share."""

from __future__ import annotations

import importlib.util

import pytest

from kvsuite.cache.layout import model_layout
from kvsuite.engine.adapters.openvino.engine import MOST_BLOCKS, blocks_of_share
from kvsuite.engine.adapters.openvino.shape import PRECISIONS, ModelShape
from kvsuite.engine.config import EngineConfig
from kvsuite.engine.registry import open_request_engine
from kvsuite.errors import EngineError


@pytest.mark.skipif(importlib.util.find_spec("openvino_genai") is not None, reason="it is installed here")
def test_a_missing_package_says_what_to_do() -> None:
    with pytest.raises(EngineError, match=r"install openvino-genai, or ask for 'openvino@newest'"):
        open_request_engine("openvino", EngineConfig(model_layout("tiny"), 32, 64))


@pytest.mark.parametrize("num_blocks", [64, 120, 999, 65536, MOST_BLOCKS])
def test_every_share_in_single_precision_is_told(num_blocks: int) -> None:
    """Shares as a float of 32 bits holds them, worked out from the blocks by way of a division."""
    import numpy as np

    for used in {0, 1, 2, num_blocks // 3, num_blocks // 2, num_blocks - 1, num_blocks}:
        share = float(np.float32(used) / np.float32(num_blocks) * np.float32(100))
        assert blocks_of_share(share, num_blocks) == used


def test_a_share_that_is_no_number_of_blocks_is_refused() -> None:
    with pytest.raises(EngineError, match=r"cache_usage is 7.9 % of 64 blocks, which is 5.05"):
        blocks_of_share(7.9, 64)


def test_block_bytes_by_hand() -> None:
    """One head of 8, 32 tokens. 16 bits: 2 x 256 x 2; 8: 40 x 8 + 32 x 16; 4: half of 48 x 8 + 32 x 24."""
    shape = ModelShape(num_layers=1, kv_heads=1, head_dim=8)
    assert [shape.block_bytes(precision) for precision in PRECISIONS] == [1024, 1024, 832, 576]
