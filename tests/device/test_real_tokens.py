"""KV slots as a library: real keys and values in, dense tensors out."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from kvsuite.cache.layout import Dtype, model_layout
from kvsuite.errors import BlockError

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from kvsuite.device.slots import KVSlots

TINY = model_layout("tiny")


@pytest.mark.parametrize("dtype", [Dtype.FLOAT32, Dtype.FLOAT16, Dtype.BFLOAT16])
def test_real_tokens_are_gathered_in_table_order(
    torch: ModuleType, make_slots: Callable[..., KVSlots], dtype: Dtype
) -> None:
    kv = make_slots(TINY.with_(dtype=dtype), 6, 4)
    table = torch.tensor([5, 0, 3], dtype=torch.int32)
    slots = np.array([20, 21, 22, 23, 0, 1, 2, 3, 12])
    k = torch.randn(9, 2, 8).to(getattr(torch, dtype.value))
    v = torch.randn(9, 2, 8).to(getattr(torch, dtype.value))
    kv.write_tokens(1, slots, {"k": k, "v": v})
    dense = kv.gather(1, table, 9)
    assert torch.equal(dense["k"], k)
    assert torch.equal(dense["v"], v)
    assert not kv.gather(0, table, 9)["k"].any()
    assert kv.gather(1, table, 0)["k"].shape == (0, 2, 8)
    with pytest.raises(BlockError, match="13 tokens need 4 blocks of 4, the table has 3"):
        kv.gather(1, table, 13)


def test_scaled_tokens_carry_a_scale_a_head(torch: ModuleType, make_slots: Callable[..., KVSlots]) -> None:
    """A head whose largest value is 896 gets the scale 896 / 448 = 2; its values are exact in e4m3."""
    kv = make_slots(TINY.with_(dtype=Dtype.FLOAT8_E4M3), 2, 4)
    token = torch.zeros(1, 2, 8)
    token[0, 0, :4] = torch.tensor([896.0, -448.0, 2.0, -0.5])
    token[0, 1, :2] = torch.tensor([0.0, -7.0])
    kv.write_tokens(0, np.array([6]), {"k": token, "v": -token})
    assert kv.scales(0, "k")[1, 2].tolist() == [2.0, 7 / 448]
    assert kv.tensor(0, "k")[1, 2, 0, :4].float().tolist() == [448.0, -224.0, 1.0, -0.25]
    dense = kv.gather(0, torch.tensor([1]), 3)
    assert torch.equal(dense["k"][2:], token)
    assert torch.equal(dense["v"][2:], -token)


def test_fp8_without_scales_saturates(torch: ModuleType, make_slots: Callable[..., KVSlots]) -> None:
    kv = make_slots(replace(TINY, dtype=Dtype.FLOAT8_E4M3), 1, 1)
    kv.write_tokens(0, np.array([0]), {"k": torch.full((1, 2, 8), 1e6), "v": torch.full((1, 2, 8), -3.0)})
    dense = kv.gather(0, torch.tensor([0]), 1)
    assert (dense["k"].float() == 448.0).all()
    assert (dense["v"].float() == -3.0).all()


def test_the_last_of_two_real_tokens_wins(torch: ModuleType, make_slots: Callable[..., KVSlots]) -> None:
    kv = make_slots(TINY, 1, 4)
    k = torch.arange(3.0).view(3, 1, 1).expand(3, 2, 8)
    kv.write_tokens(0, np.array([2, 1, 2]), {"k": k, "v": k})
    assert kv.tensor(0, "k")[0, :, 0, 0].tolist() == [0.0, 1.0, 2.0, 0.0]
