"""transformers in its own environments; where one is not built, a test skips and says what builds it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, cast

import pytest

from kvsuite.cache.layout import model_layout
from kvsuite.engine.config import EngineConfig
from kvsuite.engine.environments import find
from kvsuite.engine.hosted.engine import open_hosted

if TYPE_CHECKING:
    from kvsuite.engine.contract import Engine

TRASH_BLOCKS = 2


def transformers(version: str, usable_blocks: int = 62, block_size: int = 16, **config: Any) -> Engine:
    """Open that version on so many blocks beside its trash blocks; skip where it is not built, or fail."""
    environment = find("transformers", version)
    if environment is None:
        reason = f"not built here: kvsuite env create transformers@{version}"
        if os.environ.get("KVSUITE_REQUIRE_ENVIRONMENTS", "") not in {"", "0"}:
            pytest.fail(reason)
        pytest.skip(reason)
    asked = EngineConfig(model_layout("tiny"), block_size, usable_blocks + TRASH_BLOCKS, **config)
    return cast("Engine", open_hosted(environment.python, "transformers", asked))
