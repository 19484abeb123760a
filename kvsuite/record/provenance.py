"""What wrote a record, on what: the `Header` of a run."""

from __future__ import annotations

import importlib.metadata
import platform
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import kvsuite
from kvsuite.record.schema import Header

if TYPE_CHECKING:
    from collections.abc import Sequence

_PACKAGES = ("numpy", "torch", "triton", "pytest", "pytest-xdist", "hypothesis")


def utc_now() -> str:
    """Return the time in UTC, ISO 8601, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def run_header(command: Sequence[str], *, device: str, device_name: str, started_at: str) -> Header:
    """Return the first line of a record; ``device`` is ``cpu`` or ``cuda``, ``device_name`` its model."""
    return Header(
        started_at=started_at,
        command=list(command),
        kvsuite_version=kvsuite.__version__,
        python=platform.python_version(),
        platform=platform.platform(),
        device=device,
        device_name=device_name,
        packages=installed_packages(),
    )


def installed_packages() -> dict[str, str]:
    """Return versions of the packages a ledger may depend on, as installed; none of them is imported."""
    found = {}
    for name in _PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
