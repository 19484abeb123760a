"""Mapped and committed bytes, as the kernel reports them."""

from __future__ import annotations

import mmap

import numpy as np
import pytest

from kvsuite.device import mapping
from kvsuite.device.mapping import PAGE_BYTES, MappedBytes, PrivateMapping, observe
from kvsuite.errors import DeviceError

pytestmark = pytest.mark.usefixtures("kernel_reports")


def seen(*mappings: PrivateMapping) -> tuple[MappedBytes, ...]:
    report = observe(mappings)
    assert report is not None
    return report


def test_only_written_pages_are_committed() -> None:
    area = PrivateMapping(10 * PAGE_BYTES)
    assert seen(area) == (MappedBytes(10 * PAGE_BYTES, 0),)
    content = np.frombuffer(area.buffer, np.uint8)
    assert not content.any()
    assert seen(area) == (MappedBytes(10 * PAGE_BYTES, 0),)
    content[0] = content[9 * PAGE_BYTES] = 1
    assert seen(area) == (MappedBytes(10 * PAGE_BYTES, 2 * PAGE_BYTES),)


def test_bytes_round_up_to_the_page() -> None:
    area = PrivateMapping(PAGE_BYTES + 1)
    assert len(area.buffer) == PAGE_BYTES + 1
    assert seen(area) == (MappedBytes(2 * PAGE_BYTES, 0),)


def test_pages_given_back_read_as_zeros_and_others_keep_their_bytes() -> None:
    area = PrivateMapping(4 * PAGE_BYTES)
    content = np.frombuffer(area.buffer, np.uint8)
    content[:] = 7
    area.give_back(1, 2)
    assert seen(area) == (MappedBytes(4 * PAGE_BYTES, 2 * PAGE_BYTES),)
    assert [int(content[page * PAGE_BYTES]) for page in range(4)] == [7, 0, 0, 7]


def test_touched_pages_are_committed_unchanged() -> None:
    area = PrivateMapping(4 * PAGE_BYTES)
    content = np.frombuffer(area.buffer, np.uint8)
    content[0] = 9
    area.touch(np.array([0, 3]))
    assert seen(area) == (MappedBytes(4 * PAGE_BYTES, 2 * PAGE_BYTES),)
    assert content[0] == 9
    assert content.sum() == 9


def test_several_mappings_keep_apart() -> None:
    areas = [PrivateMapping(n * PAGE_BYTES) for n in (1, 2, 3, 4)]
    for i, area in enumerate(areas):
        np.frombuffer(area.buffer, np.uint8)[: i * PAGE_BYTES] = 1
    assert seen(*areas) == tuple(MappedBytes((i + 1) * PAGE_BYTES, i * PAGE_BYTES) for i in range(4))


def test_without_guards_a_merge_with_the_neighbours_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mapping, "_guard", lambda address: None)
    area = PrivateMapping(8 * PAGE_BYTES)
    assert seen(area)[0].mapped_bytes >= 10 * PAGE_BYTES


def test_memory_goes_back_with_the_last_view() -> None:
    area = PrivateMapping(3 * PAGE_BYTES)
    content = np.frombuffer(area.buffer, np.uint8)
    area.close()
    assert seen(area) == (MappedBytes(3 * PAGE_BYTES, 0),)
    del content
    assert seen(area) == (MappedBytes(0, 0),)
    with pytest.raises(DeviceError, match="was closed"):
        area.give_back(0, 1)


def test_more_than_the_address_space_is_refused() -> None:
    with pytest.raises(DeviceError, match=r"cannot map a pool of \d+ bytes .*give a smaller pool"):
        PrivateMapping(1 << 60)


def test_a_shared_mapping_would_not_give_pages_back() -> None:
    """Why the mapping is private: of a shared one the kernel drops the view and keeps the bytes."""
    shared = mmap.mmap(-1, PAGE_BYTES)
    shared[0] = 5
    shared.madvise(mmap.MADV_DONTNEED)
    assert shared[0] == 5
    shared.close()
