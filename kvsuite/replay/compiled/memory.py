"""What the blocks of a pool take here, and what this machine has: who takes more is killed without a word."""

from __future__ import annotations

import re
from pathlib import Path

from kvsuite.errors import ConfigError

_GROUP = Path("sys/fs/cgroup")
"""Of the container, in version 2 of control groups."""


def refuse_beyond_memory(num_blocks: int, needed_bytes: int, root: Path = Path("/")) -> None:
    """Find out before the arrays of a pool are made whether they fit.

    **Raises:** `ConfigError` when they do not. Where the memory cannot be told, everything fits.
    """
    available = available_bytes(root)
    if available is not None and needed_bytes > available:
        raise ConfigError(
            f"a pool of {num_blocks} blocks takes {needed_bytes / 2**30:,.1f} GiB to replay, and "
            f"{available / 2**30:,.1f} GiB of this machine are available: give a smaller pool or "
            "larger blocks"
        )


def available_bytes(root: Path) -> int | None:
    """Return the bytes that may still be used: of the machine, or of the container where that has less.

    Pages of files that nobody has used of late count as used by a container, and are let go when asked for.
    """
    found = re.search(r"^MemAvailable:\s*([0-9]+) kB", _text(root / "proc/meminfo"), re.MULTILINE)
    limits = [int(found[1]) * 1024] if found else []
    most, used = (_text(root / _GROUP / name).strip() for name in ("memory.max", "memory.current"))
    if most.isdigit() and used.isdigit():
        idle = re.search(r"^inactive_file ([0-9]+)", _text(root / _GROUP / "memory.stat"), re.MULTILINE)
        limits.append(max(0, int(most) - int(used) + (int(idle[1]) if idle else 0)))
    return min(limits, default=None)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
