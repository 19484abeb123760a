"""Which device a run is on. torch is imported only where nothing else can tell.

``auto`` takes the first usable card and else the CPU; ``cuda`` without a usable card is an error.
"""

from __future__ import annotations

import os
import platform
import re
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from kvsuite.errors import ConfigError, DeviceError

if TYPE_CHECKING:
    from collections.abc import Mapping

_DEVICE = re.compile(r"auto|cpu|cuda(?::(?P<index>\d+))?")
_LISTED_GPU = re.compile(r"\d+|(GPU|MIG)-\S+")
_OTHER_GPU_NODES = ("dxg", "nvhost-gpu", "kfd")
"""Device nodes of cards that leave no numbered node: WSL, Jetson, ROCm. Only torch can count these."""


def resolve_device(text: str, environ: Mapping[str, str] = os.environ) -> str:
    """Return ``cpu`` or ``cuda:N`` for ``auto``, ``cpu``, ``cuda`` or ``cuda:N``.

    ``cpu`` never imports torch, and ``auto`` does not where no card is visible.

    **Raises:** `ConfigError` for another text, `DeviceError` where ``cuda`` was asked for and the card
    cannot be used: there is no fallback.
    """
    asked = _DEVICE.fullmatch(text)
    if asked is None:
        raise ConfigError(f"unknown device {text!r}: expected auto, cpu, cuda or cuda:N")
    if text == "cpu":
        return "cpu"
    index = int(asked["index"] or 0)
    if text == "auto":
        return "cpu" if visible_gpus(environ) == 0 or cuda_problem(index, environ) else "cuda:0"
    problem = cuda_problem(index, environ)
    if problem is not None:
        raise DeviceError(f"device {text} was asked for, but {problem}")
    return f"cuda:{index}"


def cuda_problem(index: int, environ: Mapping[str, str] = os.environ) -> str | None:
    """Return why card ``index`` cannot be used and what to do, or ``None`` where it answers."""
    try:
        import torch
    except ImportError:
        return "torch is not installed: install kvsuite[device] on a CUDA build of torch, or use --device cpu"
    if torch.version.cuda is None and torch.version.hip is None:
        return (
            f"torch {torch.__version__} is built without CUDA: install a CUDA build of torch, "
            "or use --device cpu"
        )
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if index >= count:
        listed = environ.get("CUDA_VISIBLE_DEVICES")
        told = "".join(f"; torch says: {warning.message}" for warning in said[:1])
        return (
            f"torch {torch.__version__} sees {count} cards "
            f"(CUDA_VISIBLE_DEVICES is {'not set' if listed is None else repr(listed)}{told}): "
            "check the driver with nvidia-smi, choose a card below that count, or use --device cpu"
        )
    try:
        torch.ones(1, device=f"cuda:{index}").item()
    except RuntimeError as error:
        return f"card {index} does not run a kernel ({error}): check it with nvidia-smi, or use --device cpu"
    return None


def gpu_ids(environ: Mapping[str, str] = os.environ, root: Path = Path("/")) -> tuple[str, ...] | None:
    """Return the ids of visible cards, fit for ``CUDA_VISIBLE_DEVICES``; ``None``: only torch can tell.

    A list in ``CUDA_VISIBLE_DEVICES`` is read as the CUDA runtime does: the first entry that names no
    card ends it, a repeated one voids it. Else device nodes are counted, then the driver's own list.
    """
    installed = _installed_gpus(root)
    listed = environ.get("CUDA_VISIBLE_DEVICES")
    if listed is None:
        return None if installed is None else tuple(str(index) for index in range(installed))
    found: list[str] = []
    for entry in (part.strip() for part in listed.split(",")):
        if not _LISTED_GPU.fullmatch(entry) or (installed and entry.isdigit() and int(entry) >= installed):
            break
        if entry in found:
            return ()
        found.append(entry)
    return tuple(found)


def visible_gpus(environ: Mapping[str, str] = os.environ, root: Path = Path("/")) -> int:
    """Return how many cards this process may use; ``CUDA_VISIBLE_DEVICES`` alone decides where it is set."""
    ids = gpu_ids(environ, root)
    if ids is not None:
        return len(ids)
    try:
        import torch
    except ImportError:
        return 0
    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def device_name(device: str) -> str:
    """Return the model name of the processor or card behind ``cpu`` or ``cuda:N``."""
    if device != "cpu":
        import torch

        return str(torch.cuda.get_device_name(device))
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    model = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return model[1].strip() if model else platform.processor() or platform.machine()


def _installed_gpus(root: Path) -> int | None:
    """Return the number of cards in this machine or container; ``None``: cannot be seen from files."""
    if platform.system() != "Linux":
        return 0 if platform.system() == "Darwin" else None
    nodes = [node for node in (root / "dev").glob("nvidia*") if node.name.removeprefix("nvidia").isdigit()]
    if nodes:
        return len(nodes)
    cards = list((root / "proc/driver/nvidia/gpus").glob("*"))
    if not cards and any((root / "dev" / name).exists() for name in _OTHER_GPU_NODES):
        return None
    return len(cards)
