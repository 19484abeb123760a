"""OpenVINO GenAI in its own environment; where that is not built, its tests skip and say what builds it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

from kvsuite.cache.layout import Dtype, model_layout
from kvsuite.engine.adapters.openvino.model import is_exported
from kvsuite.engine.config import EngineConfig
from kvsuite.engine.environments import find
from kvsuite.engine.registry import open_request_engine

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvsuite.engine.contract import RequestEngine

NEWEST = "2026.4.1.0"
OLDER = "2026.0.0.0"


@pytest.fixture
def openvino() -> Callable[..., RequestEngine]:
    """Open a version on 64 blocks, without a prefix cache unless told otherwise."""

    def make(version: str = NEWEST, *, dtype: Dtype = Dtype.BFLOAT16, **config: Any) -> RequestEngine:
        if find("openvino", version) is None or not is_exported(version):
            reason = f"not built here: kvsuite env create openvino@{version}"
            if os.environ.get("KVSUITE_REQUIRE_ENVIRONMENTS", "") not in {"", "0"}:
                pytest.fail(reason)
            pytest.skip(reason)
        given = {"block_size": 32, "num_blocks": 64, "prefix_cache": False, **config}
        asked = EngineConfig(layout=model_layout("tiny").with_(dtype=dtype), **given)
        return open_request_engine(f"openvino@{version}", asked)

    return make
