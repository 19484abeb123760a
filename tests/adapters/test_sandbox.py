"""The import sandbox over a package of four files, none of which would import by itself."""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

import pytest

from kvsuite.engine.adapters.sandbox import InertModule, Rules, Sandbox
from kvsuite.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

CACHE = """
import nowhere_accelerator
from boxed.kernels.fast import FastKernel, compiled, launch
from boxed.settings import get_limit
from boxed.utils import ceil

HAS_DEVICE = bool(launch)
DEVICE = launch("name")


@compiled
def blocks(tokens):
    return ceil(tokens, get_limit())


@compiled(unroll=4)
def twice(tokens):
    return 2 * tokens


class Native(FastKernel[int]):
    pass


def on_the_device(tokens):
    return launch(tokens)


def if_there_is_one():
    return 1 if launch.ready else 0


def later():
    import nowhere_accelerator
"""
RULES = Rules(
    package="boxed",
    real=("boxed.cache", "boxed.utils.common", "boxed.extra"),
    shells={"boxed": None, "boxed.utils": "boxed.utils.common"},
    left_out=("boxed.extra.device",),
    optional=("nowhere_accelerator", "json"),
    answers={"boxed.settings": {"get_limit": lambda: 4}},
)


@pytest.fixture
def sandbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sandbox]:
    """A sandbox over a package on disk; whatever was imported is forgotten again."""
    files = {
        "boxed/__init__.py": "raise ImportError('needs a device')",
        "boxed/cache.py": CACHE,
        "boxed/settings.py": "raise ImportError('needs a server')",
        "boxed/kernels/fast.py": "raise ImportError('needs a device')",
        "boxed/utils/__init__.py": "raise ImportError('needs a device')",
        "boxed/utils/common.py": "def ceil(n, b):\n    return -(-n // b)\n",
        "boxed/extra/__init__.py": "",
        "boxed/extra/device.py": "raise ImportError('needs a device')",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    found = Sandbox(RULES)
    yield found
    sys.meta_path[:] = [finder for finder in sys.meta_path if finder is not found]
    for name in [name for name in sys.modules if name.partition(".")[0] in {"boxed", "nowhere_accelerator"}]:
        del sys.modules[name]


@pytest.fixture
def cache(sandbox: Sandbox) -> Any:
    with sandbox.importing():
        return importlib.import_module("boxed.cache")


def test_listed_modules_are_the_files_and_the_rest_is_named(sandbox: Sandbox, cache: Any) -> None:
    """9 tokens in blocks of 4, by the real `ceil` and the answer given for the limit, are 3 blocks."""
    assert (cache.blocks(9), cache.twice(3), cache.HAS_DEVICE) == (3, 6, False)
    assert sandbox.left_out == [
        "nowhere_accelerator",
        "boxed.kernels",
        "boxed.kernels.fast",
        "boxed.settings",
    ]


def test_an_inert_name_answers_nothing_once_the_imports_are_done(cache: Any) -> None:
    with pytest.raises(EngineError, match=r"boxed\.kernels\.fast\.launch was called"):
        cache.on_the_device(8)
    with pytest.raises(EngineError, match=r"fast\.launch\.ready was asked whether it is true"):
        cache.if_there_is_one()
    with pytest.raises(EngineError, match=r"fast\.FastKernel was opened"):
        cache.Native()
    with pytest.raises(EngineError, match=r"fast\.launch\(\) was called"):
        cache.DEVICE()


def test_a_part_of_a_real_package_can_be_left_out(sandbox: Sandbox) -> None:
    with sandbox.importing():
        module = importlib.import_module("boxed.extra.device")
    assert isinstance(module, InertModule)
    assert not isinstance(sys.modules["boxed.extra"], InertModule)


def test_optional_packages_are_inert_only_where_they_are_absent_and_only_meanwhile(
    sandbox: Sandbox, cache: Any
) -> None:
    with sandbox.importing():
        assert importlib.import_module("json").loads("[1]") == [1]
    assert "nowhere_accelerator" not in sys.modules
    with pytest.raises(ModuleNotFoundError, match="nowhere_accelerator"):
        cache.later()


def test_a_package_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    box = Sandbox(Rules("nowhere_engine", (), {"nowhere_engine": None}))
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    with box.importing(), pytest.raises(EngineError, match="nowhere_engine is not installed here"):
        importlib.import_module("nowhere_engine")
