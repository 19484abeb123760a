from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kvsuite.errors import KernelUnavailable

if TYPE_CHECKING:
    from types import ModuleType

    from kvsuite.device.attention.compiler import Compiler


@pytest.fixture(scope="session")
def compiler(torch: ModuleType) -> Compiler:
    del torch
    from kvsuite.device.attention.compiler import find_compiler

    try:
        return find_compiler()
    except KernelUnavailable as error:
        pytest.skip(str(error))
