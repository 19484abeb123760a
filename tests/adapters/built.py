"""Engines in their own environments; where one is not built, a test skips and says what builds it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

from kvsuite.cache.layout import model_layout
from kvsuite.engine.config import EngineConfig
from kvsuite.engine.environments import find
from kvsuite.engine.hosted.engine import open_hosted

if TYPE_CHECKING:
    from pathlib import Path

    from kvsuite.engine.contract import Engine

VERSIONS = {"sglang": "0.5.23", "lmdeploy": "0.18.0", "tokasaurus": "0.0.4"}


def interpreter(name: str) -> Path:
    """Return the interpreter of an engine's environment; skip, or fail, where it is not built."""
    environment = find(name, VERSIONS[name])
    if environment is not None:
        return environment.python
    reason = f"not built here: kvsuite env create {name}@{VERSIONS[name]}"
    if os.environ.get("KVSUITE_REQUIRE_ENVIRONMENTS", "") not in {"", "0"}:
        pytest.fail(reason)
    pytest.skip(reason)


def opened(
    name: str, block_size: int, num_blocks: int, *, factory: str | None = None, **config: Any
) -> Engine:
    """Open an engine, or what ``factory`` makes beside it, on blocks of the tiny layout."""
    asked = EngineConfig(model_layout("tiny"), block_size, num_blocks, **config)
    return open_hosted(interpreter(name), factory or name, asked)  # type: ignore[return-value]
