"""Full slots move between pools bit for bit, through the same verb as the probe's."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="full slots are torch tensors: install the extra `device`")

from kvsuite.cache.layout import model_layout  # noqa: E402
from kvsuite.device.worker import SlotWorker  # noqa: E402
from kvsuite.engine.contract import Transfer  # noqa: E402
from kvsuite.engine.snapshot import PoolKey, PoolSpec  # noqa: E402
from kvsuite.replay.worker import ProbeWorker, Worker  # noqa: E402
from kvsuite.trace.request import RequestId  # noqa: E402

DEVICE, HOST = PoolKey(), PoolKey(tier="host")
LAYOUT = model_layout("tiny")
POOLS = tuple(PoolSpec(key, 4, 4, LAYOUT.bytes_per_token) for key in (DEVICE, HOST))


@pytest.mark.parametrize("mode", ["probe", "full"])
def test_the_first_slots_of_a_block_arrive_in_the_other_pool(mode: str) -> None:
    """Three of four slots of block 1 go to block 2 of the host; the fourth keeps what it had."""
    worker: Worker = ProbeWorker(POOLS) if mode == "probe" else SlotWorker(POOLS, LAYOUT)
    slots, tags = np.arange(4, 8), np.array([11, 12, 13, 14])
    worker.write(DEVICE, slots, tags)
    worker.write(HOST, np.array([11]), np.array([99]))
    worker.transfer(Transfer(0, DEVICE, 1, HOST, 2, 3, RequestId("a")))
    assert worker.matches(HOST, np.arange(8, 12), np.array([11, 12, 13, 14])).tolist() == [True] * 3 + [False]
    assert worker.matches(HOST, np.array([11]), np.array([99])).all()
    assert worker.matches(DEVICE, slots, tags).all()
