"""Attention in float64 by a second way of writing it, by hand, and what its bound lets through."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from kvsuite.cache.layout import Dtype
from tests.device.attention.scenes import ragged, scene

if TYPE_CHECKING:
    from types import ModuleType


def test_two_tokens_by_hand(torch: ModuleType) -> None:
    """Scores ln 3 and 0 weigh 3/4 and 1/4: values 8 and 4, read through blocks 1 and 0, come to 7.

    The second head asks nothing, so that both weigh 1/2.
    """
    from kvsuite.device.attention.call import KVView
    from kvsuite.device.attention.exact import exact_attention

    keys = torch.tensor([0.0, 1.0]).view(2, 1, 1, 1)
    values = torch.tensor([4.0, 8.0]).view(2, 1, 1, 1)
    query = torch.tensor([float(np.log(3.0)) / 2, 0.0]).view(1, 2, 1)
    table, lengths = torch.tensor([[1, 0]], dtype=torch.int32), torch.tensor([2], dtype=torch.int32)
    out = exact_attention(query, KVView(keys, values), table, lengths, scale=2.0)
    assert out.dtype == torch.float64
    assert out.flatten().tolist() == pytest.approx([7.0, 6.0])


@pytest.mark.parametrize("block_size", [1, 16, 256])
def test_ragged_sequences_through_a_shuffled_table_of_a_poisoned_pool(
    block_size: int, torch: ModuleType
) -> None:
    from kvsuite.device.attention.exact import error_bound, exact_attention, relative_error

    del torch
    call = scene(ragged(block_size), block_size, dtype=Dtype.BFLOAT16, seed=block_size)
    out = exact_attention(call.query, call.kv, call.tables, call.lengths, scale=call.scale)
    assert np.allclose(out.numpy(), call.expected(), rtol=1e-12, atol=1e-14)

    bound = error_bound(Dtype.BFLOAT16, head_dim=64, longest=300)
    assert relative_error(out.bfloat16(), out) <= bound
    shorter = exact_attention(call.query, call.kv, call.tables, (call.lengths - 1).clamp(1), scale=call.scale)
    assert not relative_error(shorter, out) <= bound
    assert not relative_error(out * float("nan"), out) <= bound
