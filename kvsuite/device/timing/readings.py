"""What a device says of its caches and clocks; what cannot be read is left out."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

import torch

_UNREAD_CACHE_BYTES = 64 << 20
_UNITS = {"K": 1 << 10, "M": 1 << 20}


def cache_bytes(device: str, root: Path = Path("/")) -> int:
    """Return twice the last-level cache of ``cpu`` or ``cuda:N``; who sweeps so much leaves nothing in it."""
    if device != "cpu":
        return 2 * max(int(torch.cuda.get_device_properties(device).L2_cache_size), _UNREAD_CACHE_BYTES)
    sizes = [0]
    for path in (root / "sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        with suppress(OSError, ValueError, KeyError):
            text = path.read_text(encoding="ascii").strip()
            sizes.append(int(text[:-1]) * _UNITS[text[-1]])
    return 2 * max(sizes) or _UNREAD_CACHE_BYTES


def clocks_mhz(device: str, root: Path = Path("/")) -> dict[str, float]:
    """Return the clocks that can be read now, in MHz: of a card, or the slowest and fastest processor's."""
    if device == "cpu":
        with suppress(OSError):
            text = (root / "proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
            found = [float(mhz) for mhz in re.findall(r"^cpu MHz\s*:\s*([0-9.]+)$", text, re.MULTILINE)]
            if found:
                return {"slowest processor": min(found), "fastest processor": max(found)}
        return {}
    with suppress(Exception):  # torch asks NVML, whose package may be missing and has errors of its own
        return {"multiprocessors": float(torch.cuda.clock_rate(device))}
    return {}
