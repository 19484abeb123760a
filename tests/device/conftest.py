from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from kvsuite.device.mapping import can_map
from kvsuite.device.select import resolve_device
from kvsuite.errors import DeviceError

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from kvsuite.device.slots import KVSlots


@pytest.fixture(scope="session")
def torch() -> ModuleType:
    """Import torch for the tests that need it, so that collecting them does not."""
    module: Any = pytest.importorskip("torch", reason="torch is not installed: pip install kvsuite[device]")
    module.set_num_threads(1)
    return module  # type: ignore[no-any-return]


@pytest.fixture(scope="session")
def card(torch: ModuleType) -> str:
    del torch
    try:
        return resolve_device("cuda")
    except DeviceError as error:
        pytest.skip(f"needs a CUDA card: {error}")


@pytest.fixture(scope="session")
def kernel_reports() -> None:
    if not can_map():
        pytest.skip("mapped and committed bytes are read from the Linux kernel")


@pytest.fixture
def make_slots(torch: ModuleType) -> Callable[..., KVSlots]:
    del torch
    from kvsuite.device.slots import KVSlots

    return KVSlots
