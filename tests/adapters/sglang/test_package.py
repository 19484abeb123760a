"""When the adapter refuses pages, without SGLang: slots from a kernel that is not there would be noise."""

from __future__ import annotations

import importlib.util
from types import SimpleNamespace
from typing import Any

import pytest

from kvsuite.cache.layout import model_layout
from kvsuite.engine.adapters.sglang.package import Package
from kvsuite.engine.adapters.sglang.settings import tables_fit
from kvsuite.engine.config import EngineConfig
from kvsuite.engine.registry import open_engine
from kvsuite.errors import ConfigError, EngineError


def package(*, native: tuple[str, ...], triton: bool) -> Package:
    platform = SimpleNamespace(capabilities=SimpleNamespace(supports_triton=triton))
    module = SimpleNamespace(__name__="paged", current_platform=platform, **dict.fromkeys(native, len))
    return Package("0.0", None, SimpleNamespace(), module, ())


BOTH = ("alloc_extend_naive", "alloc_decode_naive")


@pytest.mark.parametrize(
    ("native", "triton"), [((), False), (("alloc_extend_naive",), False), (BOTH, True)], ids=str
)
def test_pages_are_refused_where_a_kernel_would_place_them(native: tuple[str, ...], triton: bool) -> None:
    release = package(native=native, triton=triton)
    release.refuse_kernels(1)
    with pytest.raises(ConfigError, match=r"pages of 16 tokens with a Triton kernel .*take block size 1"):
        release.refuse_kernels(16)


def test_pages_are_taken_where_they_are_placed_natively() -> None:
    package(native=BOTH, triton=False).refuse_kernels(16)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"options": {"window": 4}}, "unknown option 'window'"),
        ({"options": {"max_requests": 0}}, "max_requests is 0"),
        ({"options": {"null_blocks": 2}}, "keeps one page back, not 2"),
        ({"num_blocks": 1}, "page 0 for padding"),
        ({"num_blocks": 2**27, "block_size": 16}, "slots with 32 bits"),
    ],
    ids=str,
)
def test_what_sglang_cannot_do_is_said(asked: dict[str, Any], said: str) -> None:
    given = {"block_size": 4, "num_blocks": 8, **asked}
    with pytest.raises(ConfigError, match=said):
        tables_fit(EngineConfig(model_layout("tiny"), **given))


def test_rows_of_the_request_table() -> None:
    asked = EngineConfig(model_layout("tiny"), 4, 8, options={"max_requests": 3, "null_blocks": 1})
    assert tables_fit(asked) == 3


@pytest.mark.skipif(importlib.util.find_spec("sglang") is not None, reason="it is installed here")
def test_a_missing_package_says_what_to_do() -> None:
    with pytest.raises(EngineError, match=r"install them, or ask for sglang@VERSION"):
        open_engine("sglang", EngineConfig(model_layout("tiny"), 4, 8))
