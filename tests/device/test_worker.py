"""The full worker: content through the protocol, and a memory line that closes to the byte."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from kvsuite.cache.layout import Dtype, Layout, attention_layout, model_layout
from kvsuite.device.mapping import PAGE_BYTES
from kvsuite.engine.snapshot import PoolKey, PoolSpec
from kvsuite.errors import BlockError, ConfigError, DeviceError
from kvsuite.ledger.invariants import device_closes
from kvsuite.replay.worker import ProbeWorker

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from kvsuite.device.reading import DeviceLine
    from kvsuite.device.worker import SlotWorker
    from kvsuite.replay.worker import Worker

TINY = model_layout("tiny")
POOL = PoolKey()
PAGED = attention_layout("paged", num_layers=2, kv_heads=2, head_dim=64)  # 1,024 bytes a token


@pytest.fixture
def make(torch: ModuleType) -> Callable[..., SlotWorker]:
    del torch
    from kvsuite.device.worker import SlotWorker

    return SlotWorker


def pool_of(
    layout: Layout, num_blocks: int, block_size: int, key: PoolKey = POOL, entry_bytes: int = 4
) -> PoolSpec:
    return PoolSpec(
        key,
        num_blocks,
        block_size,
        layout.bytes_per_token,
        layout.pad_bytes_per_block(block_size),
        table_entry_bytes=entry_bytes,
    )


def slots_in(*blocks: int, size: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return (np.array(blocks)[:, None] * size + np.arange(size)).ravel()


def only_line(worker: SlotWorker, step: int = 0) -> DeviceLine:
    (line,) = worker.memory(step)
    return line


def test_full_and_probe_slots_tell_the_same(make: Callable[..., SlotWorker]) -> None:
    spec = pool_of(TINY, 8, 4)
    workers: list[Worker] = [make((spec,), TINY), ProbeWorker((spec,))]
    rng = np.random.default_rng(3)
    slots = rng.integers(0, 32, 60)
    tags = rng.integers(1, 9, 60)
    answers = []
    for worker in workers:
        worker.write(POOL, slots, tags)
        worker.copy(POOL, 1, 6, 3)
        worker.zero(POOL, 2)
        answers.append(worker.matches(POOL, slots, tags).tolist())
    assert answers[0] == answers[1]
    assert [worker.mode for worker in workers] == ["full", "probe"]
    assert 0 < sum(answers[0]) < 60


@pytest.mark.usefixtures("kernel_reports")
def test_every_byte_of_a_pool_has_a_line(make: Callable[..., SlotWorker]) -> None:
    """6 blocks x 4 tokens x 1,024 = 24,576: 6 pages. Tables 10 x 6 x 4 = 240. Keys: 1,024 bytes."""
    worker = make((pool_of(PAGED, 6, 4),), PAGED, table_rows=10)
    line = only_line(worker, step=7)
    assert (line.step, line.owner, line.observer) == (7, "suite", "smaps")
    assert (line.pool_bytes, line.tables_bytes, line.workspace_bytes) == (24_576, 240, 1024)
    assert line.observed_bytes == 24_576 + 2 * PAGE_BYTES
    assert line.rounding_bytes == 2 * PAGE_BYTES - 240 - 1024
    assert (line.reserve_bytes, line.unattributed_bytes, line.unattributed_bound_bytes) == (0, 0, 0)
    assert line.mapped_bytes == 24_576
    assert list(device_closes(line)) == []


@pytest.mark.usefixtures("kernel_reports")
@pytest.mark.parametrize("dtype", Dtype)
def test_committed_bytes_are_blocks_in_use_times_block_bytes(
    make: Callable[..., SlotWorker], dtype: Dtype
) -> None:
    size = 16
    layout = replace(PAGED.with_(dtype=dtype), block_alignment_bytes=PAGE_BYTES)
    block_bytes = layout.block_bytes(size)
    worker = make((pool_of(layout, 32, size),), layout)
    assert only_line(worker).committed_bytes == 0
    written = slots_in(3, 31, 8, 9, 10, size=size)
    worker.write(POOL, written, np.arange(len(written)))
    assert only_line(worker).committed_bytes == 5 * block_bytes
    worker.write(POOL, np.array([0]), np.array([5]))  # one token takes its whole block
    worker.copy(POOL, 3, 20, 2)
    worker.zero(POOL, 21)
    line = only_line(worker)
    assert line.committed_bytes == line.expected_committed_bytes == 8 * block_bytes
    worker.blocks_in_use(POOL, np.array([3, 20, 8]))
    line = only_line(worker)
    assert line.committed_bytes == line.expected_committed_bytes == 3 * block_bytes
    kept = slots_in(3, 8, size=size)
    due = np.concatenate([np.arange(size), np.arange(2 * size, 3 * size)])
    assert worker.matches(POOL, kept, due).all()
    worker.matches(POOL, np.arange(32 * size), np.arange(32 * size))  # reading commits nothing
    assert only_line(worker).committed_bytes == 3 * block_bytes
    worker.blocks_in_use(POOL, np.zeros(0, np.int64))
    line = only_line(worker)
    assert line.committed_bytes == line.expected_committed_bytes == 0
    assert line.mapped_bytes == 32 * block_bytes


@pytest.mark.usefixtures("kernel_reports")
def test_blocks_that_share_pages_are_exact_too(make: Callable[..., SlotWorker]) -> None:
    """TINY holds 128 bytes a token: blocks of 5 tokens are 640 bytes, 6.4 to a page; 100 are 15.6 pages."""
    worker = make((pool_of(TINY, 100, 5),), TINY)
    worker.write(POOL, slots_in(0, 5, 6, 99, size=5), np.arange(20))
    line = only_line(worker)
    # Block 6 is bytes 3,840 to 4,479: pages 0 and 1. Block 99 is bytes 63,360 to 63,999: page 15.
    assert line.committed_bytes == line.expected_committed_bytes == 3 * PAGE_BYTES
    assert line.mapped_bytes == 16 * PAGE_BYTES
    worker.blocks_in_use(POOL, np.array([5, 6]))
    assert only_line(worker).committed_bytes == 2 * PAGE_BYTES
    assert worker.matches(POOL, slots_in(5, 6, size=5), np.arange(5, 15)).all()
    worker.blocks_in_use(POOL, np.array([5]))
    assert only_line(worker).committed_bytes == PAGE_BYTES
    assert list(device_closes(only_line(worker))) == []


@pytest.mark.usefixtures("kernel_reports")
def test_several_pools_add_up(make: Callable[..., SlotWorker]) -> None:
    window = attention_layout("window", num_layers=1, kv_heads=1, head_dim=64)  # 256 bytes a token
    keys = PoolKey(0), PoolKey(1), PoolKey(2)
    specs = (
        pool_of(PAGED, 4, 8, keys[0]),
        pool_of(window, 5, 16, keys[1], entry_bytes=8),
        pool_of(TINY, 3, 1, keys[2], entry_bytes=2),
    )
    worker = make(specs, {keys[0]: PAGED, keys[1]: window, keys[2]: TINY}, table_rows=2)
    worker.write(keys[0], np.array([0]), np.array([1]))
    worker.write(keys[1], np.array([16]), np.array([1]))
    line = only_line(worker)
    assert line.pool_bytes == 4 * 8192 + 5 * 4096 + 3 * 128
    assert line.tables_bytes == 2 * (4 * 4 + 5 * 8 + 3 * 2)
    assert line.mapped_bytes == 8 * PAGE_BYTES + 5 * PAGE_BYTES + PAGE_BYTES
    assert line.committed_bytes == line.expected_committed_bytes == 8192 + 4096
    assert list(device_closes(line)) == []
    assert worker.block_table(keys[1]).shape == (2, 5)


def test_tables_are_storages_of_their_own(make: Callable[..., SlotWorker]) -> None:
    worker = make((pool_of(PAGED, 64, 16),), PAGED, table_rows=12, max_sequence_tokens=100)
    table = worker.block_table(POOL)
    assert table.shape == (12, 7)  # ceil(100 / 16) blocks
    assert worker.held().tables_bytes == 12 * 7 * 4 == table.untyped_storage().nbytes()
    small = make((pool_of(PAGED, 3, 16),), PAGED, table_rows=12, max_sequence_tokens=100)
    assert small.block_table(POOL).shape == (12, 3)  # a row never needs more than the pool has


@pytest.mark.usefixtures("kernel_reports")
def test_bytes_written_behind_the_worker_s_back_break_the_line(make: Callable[..., SlotWorker]) -> None:
    worker = make((pool_of(PAGED, 8, 4),), PAGED)
    worker.write(POOL, slots_in(2, size=4), np.arange(4))
    assert list(device_closes(only_line(worker))) == []
    worker.slots(POOL).tensor(0, "k")[5] = 1
    line = only_line(worker)
    assert line.committed_bytes == 2 * 4096
    (violation,) = device_closes(line)
    assert "8192 bytes committed, the blocks in use come to 4096" in str(violation.message)


@pytest.mark.usefixtures("kernel_reports")
def test_a_pool_larger_than_its_shape_is_unattributed(
    make: Callable[..., SlotWorker], monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = make((pool_of(PAGED, 8, 4),), PAGED)
    held = worker.held()
    monkeypatch.setattr(worker, "held", lambda: replace(held, pool_bytes=held.pool_bytes - PAGE_BYTES))
    line = only_line(worker)
    assert line.unattributed_bytes == PAGE_BYTES
    assert len(list(device_closes(line))) == 1


@pytest.mark.usefixtures("kernel_reports")
def test_memory_goes_back_when_the_worker_is_closed(make: Callable[..., SlotWorker]) -> None:
    from kvsuite.device.mapping import observe

    worker = make((pool_of(PAGED, 8, 4),), PAGED)
    mapping = worker.slots(POOL).buffer.allocation.mapping
    assert mapping is not None
    worker.close()
    gone = observe([mapping])
    assert gone is not None
    assert gone[0].mapped_bytes == 0


def test_elsewhere_memory_is_not_observed(
    make: Callable[..., SlotWorker], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvsuite.device.buffer.can_map", lambda: False)
    worker = make((pool_of(PAGED, 8, 4),), PAGED)
    worker.write(POOL, np.array([9]), np.array([4]))
    assert worker.matches(POOL, np.array([9]), np.array([4])).all()
    worker.blocks_in_use(POOL, np.array([2]))
    assert worker.slots(POOL).buffer.expected_committed_bytes is None
    assert worker.memory(0) == ()


@pytest.mark.usefixtures("kernel_reports")
def test_a_kernel_without_a_report_observes_nothing(
    make: Callable[..., SlotWorker], monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = make((pool_of(PAGED, 8, 4),), PAGED)
    monkeypatch.setattr("kvsuite.device.worker.observe", lambda mappings: None)
    assert worker.memory(0) == ()


def test_a_pool_of_another_layout_is_refused(make: Callable[..., SlotWorker]) -> None:
    with pytest.raises(ConfigError, match=r"holds 1024 bytes a token, layout tiny .* 128: give the layout"):
        make((pool_of(PAGED, 8, 4),), TINY)
    with pytest.raises(ConfigError, match="table entries of 3 bytes: expected 2, 4 or 8"):
        make((pool_of(PAGED, 8, 4, entry_bytes=3),), PAGED)
    with pytest.raises(BlockError, match="block 8 is not in the pool"):
        make((pool_of(PAGED, 8, 4),), PAGED).write(POOL, np.array([32]), np.array([0]))


def test_a_pool_without_room_is_refused(make: Callable[..., SlotWorker]) -> None:
    with pytest.raises(DeviceError, match="give a smaller pool"):
        make((pool_of(PAGED, 1 << 50, 4),), PAGED)
