"""The engine printed in docs/testing-your-engine.md is installed as a package would be, found and sound."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kvsuite.cache.layout import model_layout
from kvsuite.engine import verbs
from kvsuite.engine.config import EngineConfig
from kvsuite.engine.contract import Capability
from kvsuite.engine.registry import describe_engines, engine_names, open_engine
from kvsuite.replay.driver import replay
from kvsuite.trace.synthetic import synthetic

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]
DOCUMENT = (ROOT / "docs" / "testing-your-engine.md").read_text(encoding="utf-8")
(ENGINE,) = re.findall(r"^```python\n(.*?)^```$", DOCUMENT, re.MULTILINE | re.DOTALL)
(SCENE,) = re.findall(r"^```py\n(.*?)^```$", DOCUMENT, re.MULTILINE | re.DOTALL)
(ENTRY_POINT,) = re.findall(
    r'^```toml\n\[project.entry-points."(.*?)^```$', DOCUMENT, re.MULTILINE | re.DOTALL
)


def install(folder: Path, source: str) -> None:
    """Lay down a package ``acme`` with its metadata, as an installer leaves it."""
    (folder / "acme").mkdir()
    (folder / "acme" / "__init__.py").touch()
    (folder / "acme" / "kv_adapter.py").write_text(source, encoding="utf-8")
    metadata = folder / "acme_kv-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: acme-kv\nVersion: 1.0\n", encoding="utf-8"
    )
    group, entry = ENTRY_POINT.split('"]\n')
    name, target = re.fullmatch(r'(\w+) = "(.*)"\n', entry).groups()  # type: ignore[union-attr]
    (metadata / "entry_points.txt").write_text(f"[{group}]\n{name} = {target}\n", encoding="utf-8")


@pytest.fixture
def acme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    install(tmp_path, ENGINE)
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    yield tmp_path
    for name in [name for name in sys.modules if name.partition(".")[0] == "acme"]:
        del sys.modules[name]


def config(num_blocks: int = 192) -> EngineConfig:
    return EngineConfig(layout=model_layout("tiny"), block_size=16, num_blocks=num_blocks)


@pytest.mark.usefixtures("acme")
def test_the_example_is_found_by_its_entry_point() -> None:
    assert "acme" in engine_names()
    (found,) = [engine for engine in describe_engines() if engine.name == "acme"]
    assert (found.origin, found.error) == ("acme-kv 1.0", None)


@pytest.mark.usefixtures("acme")
@pytest.mark.parametrize("workload", ["boundary", "churn", "thrash"])
def test_the_example_keeps_every_law_under_pressure(workload: str) -> None:
    trace = synthetic(workload)
    engine = open_engine("acme", config())
    done = replay(trace, engine)
    assert done.violations == ()
    assert done.content.mismatches == 0
    assert [law.invariant for law in done.not_judged] == ["recount"]
    assert engine.spec.capabilities == {
        Capability.PAGED,
        Capability.CHUNKED_PREFILL,
        Capability.PREEMPTION,
    }
    if workload == "thrash":
        assert done.timeline.pools[0].total("preempted") > 0


@pytest.mark.usefixtures("acme")
def test_the_scene_shown_plays_to_its_end() -> None:
    played: dict[str, Any] = {}
    exec(SCENE, played)
    assert played["scene"].lifecycle == [
        "admit a 5 -> 0 found, 5 scheduled",
        *("launch step 0", "settle step 0"),
        "extend a by 1 -> True",
        *("launch step 1", "settle step 1"),
        "release a (finish)",
    ]


def test_every_verb_of_a_capability_is_named() -> None:
    protocols = [protocol for name, protocol in vars(verbs).items() if name.startswith("Supports")]
    named = {verb for protocol in protocols for verb in vars(protocol) if not verb.startswith("_")}
    assert "transfer_done" in named
    assert {verb for verb in named if f"`{verb}(" not in DOCUMENT} == set()


def test_the_deviation_shown_is_about_a_case() -> None:
    (case,) = re.findall(r'^case = "(.*)"$', DOCUMENT, re.MULTILINE)
    path, _, name = case.partition("::")
    assert f"\ndef {name}(" in (ROOT / "cases" / path).read_text(encoding="utf-8")


def test_an_example_that_forgets_a_block_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sound = "self.free += self.tables.pop(request_id)"
    assert sound in ENGINE
    install(tmp_path, ENGINE.replace(sound, "self.free += self.tables.pop(request_id)[1:]"))
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    try:
        done = replay(synthetic("boundary"), open_engine("acme", config(1024)))
    finally:
        for name in [name for name in sys.modules if name.partition(".")[0] == "acme"]:
            del sys.modules[name]
    assert "closure" in {violation.invariant for violation in done.violations}
