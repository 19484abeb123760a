"""One lock a GPU, for readings that see every process on it.

The caching allocator's counters belong to one process and need no lock. What the driver says of a whole
card (``mem_get_info``) moves whenever any worker allocates, so it is read only under this lock, and pools
are made under it too. The lock is a file named after the GPU's UUID and the user, so that workers of one
user agree on it whatever ``CUDA_VISIBLE_DEVICES`` calls the card; it ends with the process that holds it.
"""

from __future__ import annotations

import os
import re
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from kvsuite.errors import DeviceError

if TYPE_CHECKING:
    from collections.abc import Iterator


def lock_path(gpu_uuid: str, folder: Path | None = None) -> Path:
    """Return the lock file of one GPU; ``folder`` is the system's temporary one unless given."""
    name = re.sub(r"[^0-9A-Za-z-]", "_", gpu_uuid)
    return (folder or Path(tempfile.gettempdir())) / f"kvsuite-{os.getuid()}-{name}.lock"


@contextmanager
def gpu_lock(gpu_uuid: str, folder: Path | None = None) -> Iterator[None]:
    """Hold the lock of one GPU; waits while another process or thread holds it.

    **Raises:** `DeviceError` where the lock file cannot be opened.
    """
    import fcntl

    path = lock_path(gpu_uuid, folder)
    try:
        handle = path.open("a", encoding="ascii")
    except OSError as error:
        raise DeviceError(
            f"cannot open {path}, the lock of GPU {gpu_uuid} ({error.strerror}): set TMPDIR to a folder "
            "that all workers can write"
        ) from error
    with handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
