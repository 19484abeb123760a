"""The import filter over a package of a few files that would not import by itself."""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

import pytest

from kvsuite.engine.adapters.vllm.import_filter import FilterRules, ImportFilter, absent_packages
from kvsuite.engine.adapters.vllm.inert import InertModule
from kvsuite.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path
    from types import ModuleType

FILES = {
    "engine/__init__.py": "raise ImportError('needs a card')",
    "engine/core/__init__.py": "raise ImportError('needs a server')",
    "engine/core/pool.py": (
        "import missing_codec\n"
        "from engine.kernels import launch\n"
        "from engine.logger import logger_of\n"
        "from engine.request import Request, Status\n"
        "from engine.utils.maths import up\n"
        "LOG = logger_of('pool')\n"
        "class Native(launch.Base): pass\n"
        "class Answer(Request, kind='answer'): pass\n"
        "def blocks(tokens: int, by: 'launch | None' = None): return up(tokens, 4)\n"
        "def run(): return launch(1)\n"
        "def encode(): return missing_codec.encode(b'')\n"
        "def later():\n    from engine.kernels.late import go\n    return go()\n"
        "KINDS = {Status.DONE: 1}\n"
        "MAYBE = Request | None\n"
        "MANY = list[Request[int]]\n"
    ),
    "engine/core/pool_extra.py": "FOUND = True",
    "engine/core/left_out.py": "raise ImportError('not to be read')",
    "engine/kernels.py": "raise ImportError('needs a card')",
    "engine/request.py": "raise ImportError('needs a server')",
    "engine/utils/__init__.py": "HERE = True",
    "engine/utils/maths.py": "def up(n, b): return -(-n // b) * b",
    "engine/utils/network.py": "raise ImportError('needs a network')",
}


def give_logger(module: ModuleType) -> None:
    vars(module).update(logger_of=lambda name: f"logger of {name}")


RULES = FilterRules(
    package="engine",
    real=("engine.core.pool", "engine.utils", "engine.utils.maths"),
    real_where_present=("engine.core.*", "engine.newer"),
    left_out=("engine.core.left_out",),
    given={"engine.logger": give_logger},
)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path / "engine"


@pytest.fixture
def load(root: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Any]]:
    """Import through the filter; whatever was imported is forgotten again."""
    before = set(sys.modules)
    monkeypatch.setattr(sys, "meta_path", [ImportFilter(root, RULES), *sys.meta_path])

    def load(name: str) -> Any:
        with absent_packages({"missing_codec": None, "json": None}):
            return importlib.import_module(name)

    yield load
    for name in set(sys.modules) - before:
        del sys.modules[name]


def test_listed_modules_are_the_real_files(load: Callable[[str], Any], root: Path) -> None:
    pool = load("engine.core.pool")
    assert pool.__file__ == str(root / "core/pool.py")
    assert pool.blocks(5) == 8
    assert load("engine.utils").HERE
    assert load("engine.core.pool_extra").FOUND


def test_packages_on_the_way_are_not_run(load: Callable[[str], Any]) -> None:
    load("engine.core.pool")
    assert getattr(sys.modules["engine"], "__file__", None) is None
    assert isinstance(sys.modules["engine.core"], InertModule)


def test_everything_else_can_be_mentioned_and_not_called(load: Callable[[str], Any]) -> None:
    pool = load("engine.core.pool")
    assert isinstance(pool.Answer(), pool.Answer)
    assert issubclass(pool.Answer, pool.Request)
    assert len(pool.KINDS) == 1
    with pytest.raises(EngineError, match=r"engine\.kernels\.launch was called"):
        pool.run()
    with pytest.raises(EngineError, match=r"engine\.kernels\.late\.go was called"):
        pool.later()
    with pytest.raises(EngineError, match="left_out"):
        load("engine.core.left_out").anything()
    with pytest.raises(EngineError, match=r"engine\.utils\.network"):
        load("engine.utils.network").port()


def test_given_names_work(load: Callable[[str], Any]) -> None:
    assert load("engine.core.pool").LOG == "logger of pool"


def test_a_package_that_is_not_installed_is_inert_and_gone_afterwards(load: Callable[[str], Any]) -> None:
    import json

    pool = load("engine.core.pool")
    with pytest.raises(EngineError, match=r"missing_codec\.encode was called"):
        pool.encode()
    assert "missing_codec" not in sys.modules
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("missing_codec")
    assert json.loads("1") == 1, "an installed package is never replaced"


def test_a_module_of_some_versions_is_unknown_where_it_is_not(load: Callable[[str], Any]) -> None:
    with pytest.raises(ModuleNotFoundError):
        load("engine.newer")


def test_a_lost_module_of_the_list_is_named_at_once(root: Path) -> None:
    (root / "core/pool.py").unlink()
    with pytest.raises(EngineError, match=r"engine in .* has no module engine\.core\.pool, which"):
        ImportFilter(root, RULES)


def test_other_packages_are_left_to_others(root: Path) -> None:
    assert ImportFilter(root, RULES).find_spec("engineer") is None
    assert ImportFilter(root, RULES).find_spec("json") is None
