"""The import sandbox over two packages of a few files, most of which would not import by themselves."""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

import pytest

from kvsuite.engine.adapters.inert import InertModule
from kvsuite.engine.adapters.sandbox import Rules, Sandbox
from kvsuite.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
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
    shells={"boxed.utils": "boxed.utils.common"},
    left_out=("boxed.extra.device",),
    third_party=("nowhere_accelerator", "json"),
    answers={"boxed.settings": {"get_limit": lambda: 4}},
    calls_while_importing=True,
)
FILES = {
    "strict/__init__.py": "raise ImportError('needs a card')",
    "strict/core/__init__.py": "raise ImportError('needs a server')",
    "strict/core/pool.py": (
        "import abc\n"
        "import missing_codec\n"
        "from strict.core import pool_extra\n"
        "from strict.kernels import launch\n"
        "from strict.logger import logger_of\n"
        "from strict.request import Request, Status\n"
        "from strict.utils.maths import up\n"
        "LOG = logger_of('pool')\n"
        "class Native(launch.Base): pass\n"
        "class Answer(Request, kind='answer'): pass\n"
        "class Kind(Request, abc.ABC): pass\n"
        "def blocks(tokens: int, by: 'launch | None' = None): return up(tokens, 4)\n"
        "def run(): return launch(1)\n"
        "def encode(): return missing_codec.encode(b'')\n"
        "def later():\n    from strict.kernels.late import go\n    return go()\n"
        "KINDS = {Status.DONE: 1}\n"
        "MAYBE = Request | None\n"
        "MANY = list[Request[int]]\n"
    ),
    "strict/core/pool_extra.py": "FOUND = True",
    "strict/core/left_out.py": "raise ImportError('not to be read')",
    "strict/core/called.py": "from strict.kernels import tuned\n@tuned\ndef blocks(): return 1\n",
    "strict/core/asked.py": "from strict.kernels import ready\nFAST = 1 if ready else 0\n",
    "strict/core/opened.py": "from strict.request import Request\nFIRST = Request()\n",
    "strict/kernels.py": "raise ImportError('needs a card')",
    "strict/request.py": "raise ImportError('needs a server')",
    "strict/utils/__init__.py": "HERE = True",
    "strict/utils/maths.py": "def up(n, b): return -(-n // b) * b",
    "strict/utils/network.py": "raise ImportError('needs a network')",
}
STRICT = Rules(
    package="strict",
    real=("strict.core.pool", "strict.utils", "strict.utils.maths"),
    real_where_present=("strict.core.*", "strict.newer"),
    left_out=("strict.core.left_out",),
    answers={"strict.logger": {"logger_of": lambda name: f"logger of {name}"}, "missing_codec": {"LEVEL": 9}},
    third_party=("missing_codec", "json"),
)


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[dict[str, str]], None]]:
    """Write files of a package that can be found; finders and modules are as before afterwards."""
    modules = set(sys.modules)
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    monkeypatch.syspath_prepend(str(tmp_path))

    def write(files: dict[str, str]) -> None:
        for name, text in files.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text)

    yield write
    for name in set(sys.modules) - modules:
        del sys.modules[name]


@pytest.fixture
def sandbox(write: Callable[[dict[str, str]], None]) -> Sandbox:
    """A sandbox whose inert names may be used on the top level of modules."""
    write(
        {
            "boxed/__init__.py": "raise ImportError('needs a device')",
            "boxed/cache.py": CACHE,
            "boxed/settings.py": "raise ImportError('needs a server')",
            "boxed/kernels/fast.py": "raise ImportError('needs a device')",
            "boxed/utils/__init__.py": "raise ImportError('needs a device')",
            "boxed/utils/common.py": "def ceil(n, b):\n    return -(-n // b)\n",
            "boxed/extra/__init__.py": "",
            "boxed/extra/device.py": "raise ImportError('needs a device')",
        }
    )
    return Sandbox(RULES)


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


def test_a_package_that_is_not_there_is_named() -> None:
    with (
        pytest.raises(EngineError, match=r"nowhere_engine is not installed for .*nowhere_engine@VERSION"),
        Sandbox(Rules("nowhere_engine", ("nowhere_engine.cache",))).importing(),
    ):
        pytest.fail("nothing is imported")


@pytest.fixture
def strict(write: Callable[[dict[str, str]], None]) -> Callable[[str], Any]:
    """Import through a sandbox whose inert names never answer."""
    write(FILES)
    box = Sandbox(STRICT)

    def load(name: str) -> Any:
        with box.importing():
            return importlib.import_module(name)

    return load


def test_names_of_a_list_are_the_real_files(strict: Callable[[str], Any], tmp_path: Path) -> None:
    pool = strict("strict.core.pool")
    assert pool.__file__ == str(tmp_path / "strict/core/pool.py")
    assert pool.blocks(5) == 8
    assert pool.pool_extra.FOUND
    assert strict("strict.utils").HERE


def test_packages_on_the_way_are_not_run(strict: Callable[[str], Any]) -> None:
    strict("strict.core.pool")
    assert getattr(sys.modules["strict"], "__file__", None) is None
    assert isinstance(sys.modules["strict.core"], InertModule)


def test_everything_else_can_be_mentioned_and_not_called(strict: Callable[[str], Any]) -> None:
    pool = strict("strict.core.pool")
    assert issubclass(pool.Answer, pool.Request)
    assert not isinstance(1, pool.Request)
    assert len(pool.KINDS) == 1
    for use, named in (
        (pool.run, r"strict\.kernels\.launch was called"),
        (pool.later, r"strict\.kernels\.late\.go was called"),
        (pool.Request, r"strict\.request\.Request was called"),
        (pool.Answer, r"strict\.request\.Request was opened"),
        (pool.Kind, r"strict\.request\.Request was opened"),
        (strict("strict.core.left_out").anything, r"strict\.core\.left_out\.anything was called"),
        (strict("strict.utils.network").port, r"strict\.utils\.network\.port was called"),
    ):
        with pytest.raises(EngineError, match=named):
            use()


@pytest.mark.parametrize(
    ("module", "said"),
    [
        ("called", "strict.kernels.tuned was called"),
        ("asked", "strict.kernels.ready was asked whether it is true"),
        ("opened", "strict.request.Request was called"),
    ],
)
def test_nothing_answers_while_importing_where_the_table_does_not_say_so(
    strict: Callable[[str], Any], module: str, said: str
) -> None:
    with pytest.raises(EngineError, match=said):
        strict(f"strict.core.{module}")


def test_names_that_are_answered_work(strict: Callable[[str], Any]) -> None:
    assert strict("strict.core.pool").LOG == "logger of pool"


def test_a_package_that_is_not_installed_is_inert_and_gone_afterwards(strict: Callable[[str], Any]) -> None:
    pool = strict("strict.core.pool")
    assert pool.missing_codec.LEVEL == 9
    with pytest.raises(EngineError, match=r"missing_codec\.encode was called"):
        pool.encode()
    assert "missing_codec" not in sys.modules
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("missing_codec")
    assert strict("json").loads("1") == 1, "an installed package is never replaced"


def test_a_module_of_some_versions_is_unknown_where_it_is_not(strict: Callable[[str], Any]) -> None:
    with pytest.raises(ModuleNotFoundError):
        strict("strict.newer")


def test_a_lost_module_of_the_list_is_named_at_once(strict: Callable[[str], Any], tmp_path: Path) -> None:
    (tmp_path / "strict/core/pool.py").unlink()
    with pytest.raises(EngineError, match=r"strict in .* has no module strict\.core\.pool, which"):
        strict("strict.utils")


def test_other_packages_are_left_to_others(strict: Callable[[str], Any]) -> None:
    strict("strict.utils")
    (box,) = (finder for finder in sys.meta_path if isinstance(finder, Sandbox))
    assert box.find_spec("stricter") is None
    assert box.find_spec("json") is None
