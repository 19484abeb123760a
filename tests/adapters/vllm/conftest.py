"""vLLM releases in their own environments; where one is not built, its tests skip and say what builds it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, cast

import pytest

from kvsuite.cache.layout import model_layout
from kvsuite.engine.config import EngineConfig
from kvsuite.engine.environments import find
from kvsuite.engine.hosted.engine import open_hosted

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvsuite.engine.contract import Engine

_PACKAGE = "kvsuite.engine.adapters.vllm"


@pytest.fixture
def vllm() -> Callable[..., Engine]:
    """Open a release on blocks of the tiny layout: ``vllm("0.33.0", block_size=16, num_blocks=8)``."""

    def make(version: str, *, loader: str = "filtered", kind: str = "VllmEngine", **config: Any) -> Engine:
        environment = find("vllm", version, loader)
        if environment is None:
            reason = f"not built here: kvsuite env create vllm@{version} --loader {loader}"
            if os.environ.get("KVSUITE_REQUIRE_ENVIRONMENTS", "") not in {"", "0"}:
                pytest.fail(reason)
            pytest.skip(reason)
        asked = EngineConfig(layout=model_layout("tiny"), **config)
        return cast("Engine", open_hosted(environment.python, f"{_PACKAGE}:{kind}", asked))

    return make
