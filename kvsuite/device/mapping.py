"""Memory whose mapped and committed bytes the Linux kernel reports apart from everything else.

A pool lives in a private anonymous mapping of its own, between two inaccessible guard pages:

    | guard | nbytes ................ rest of page | guard |
            ^ address             mapped_bytes     ^

* *mapped* is the size of that area in ``/proc/self/smaps``; the guards keep it from merging with a
  neighbour, and areas that did merge are reported at their merged size, so that a merge is seen.
* *committed* is its ``Rss`` plus ``Swap``: pages that were written. Reading an untouched page of a
  private mapping shows the shared zero page and commits nothing. Huge pages are off, so the unit is
  the page. ``MADV_DONTNEED`` gives pages back; they read as zeros afterwards. (Of a *shared*
  anonymous mapping it would only drop the view: the pages would stay.)
"""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from kvsuite.errors import DeviceError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

PAGE_BYTES = mmap.PAGESIZE
_AREA = re.compile(rb"^([0-9a-f]+)-([0-9a-f]+) .*$", re.MULTILINE)
_BACKED = re.compile(rb"^(?:Rss|Swap):\s+(\d+) kB$", re.MULTILINE)
_PROT_NONE = 0


def can_map() -> bool:
    """Return whether this system reports a mapping's own bytes (Linux)."""
    return platform.system() == "Linux"


@dataclass(frozen=True, slots=True)
class MappedBytes:
    """What the kernel reports of one mapping."""

    mapped_bytes: int
    committed_bytes: int


class PrivateMapping:
    """``nbytes`` of zeroed memory in an area of their own.

    The memory lives until `close` was called and every view of ``buffer`` is gone.

    **Raises:** `DeviceError` where the system refuses the memory.
    """

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self.mapped_bytes = -(-nbytes // PAGE_BYTES) * PAGE_BYTES
        try:
            area = mmap.mmap(
                -1, self.mapped_bytes + 2 * PAGE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
            )
        except (OSError, OverflowError) as error:
            raise DeviceError(
                f"cannot map a pool of {nbytes} bytes ({error}): give a smaller pool, "
                "or use probe slots, which need 8 bytes a token"
            ) from error
        start = ctypes.addressof(ctypes.c_char.from_buffer(area))
        self.address = start + PAGE_BYTES
        _guard(start)
        _guard(self.address + self.mapped_bytes)
        _without_huge_pages(area)
        self._area: mmap.mmap | None = area

    @property
    def buffer(self) -> memoryview:
        """The ``nbytes`` as a writable buffer."""
        return memoryview(self._open())[PAGE_BYTES : PAGE_BYTES + self.nbytes]

    def touch(self, pages: npt.NDArray[np.int64]) -> None:
        """Commit pages without changing a byte of them."""
        first_bytes = np.frombuffer(self._open(), np.uint8)[PAGE_BYTES:-PAGE_BYTES:PAGE_BYTES]
        first_bytes[pages] = first_bytes[pages]

    def give_back(self, first_page: int, num_pages: int) -> None:
        """Give pages back to the system; they read as zeros from now on."""
        self._open().madvise(mmap.MADV_DONTNEED, (first_page + 1) * PAGE_BYTES, num_pages * PAGE_BYTES)

    def close(self) -> None:
        """Let go of the memory; it is unmapped once no view of it is left."""
        self._area = None

    def _open(self) -> mmap.mmap:
        if self._area is None:
            raise DeviceError(f"the mapping of {self.nbytes} bytes was closed")
        return self._area


def observe(mappings: Sequence[PrivateMapping]) -> tuple[MappedBytes, ...] | None:
    """Return what the kernel reports of each mapping, all in one reading; ``None``: it reports nothing."""
    try:
        report = Path("/proc/self/smaps").read_bytes()
    except OSError:
        return None
    spans = [(mapping.address, mapping.address + mapping.mapped_bytes) for mapping in mappings]
    mapped, committed = [0] * len(spans), [0] * len(spans)
    areas = list(_AREA.finditer(report))
    ends = [*(area.start() for area in areas[1:]), len(report)]
    for area, end_of_text in zip(areas, ends, strict=True):
        start, stop = int(area[1], 16), int(area[2], 16)
        for i, (low, high) in enumerate(spans):
            if start < high and low < stop:
                mapped[i] += stop - start
                committed[i] += 1024 * sum(map(int, _BACKED.findall(report, area.end(), end_of_text)))
    return tuple(MappedBytes(*pair) for pair in zip(mapped, committed, strict=True))


def _guard(address: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mprotect(ctypes.c_void_p(address), ctypes.c_size_t(PAGE_BYTES), _PROT_NONE) != 0:
        raise DeviceError(f"cannot guard the page at {address:#x}: {os.strerror(ctypes.get_errno())}")


def _without_huge_pages(area: mmap.mmap) -> None:
    try:
        area.madvise(mmap.MADV_NOHUGEPAGE)
    except OSError:
        # A kernel built without transparent huge pages refuses the advice and needs none.
        return
