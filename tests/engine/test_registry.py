"""Engines by name; third-party packages are real ones, written into a temporary folder."""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from kvsuite.engine import environments, registry
from kvsuite.engine.config import EngineConfig
from kvsuite.engine.contiguous.controls import ContiguousMax
from kvsuite.engine.contract import Capability
from kvsuite.engine.hosted.engine import HostedEngine
from kvsuite.engine.reference import ReferenceEngine
from kvsuite.engine.registry import describe_engines, engine_names, open_any_engine, open_engine
from kvsuite.errors import ConfigError, EngineError, EnvironmentUnavailable, UnknownEngine

MakeConfig = Callable[..., EngineConfig]
Install = Callable[..., None]
BUILT_IN = ("reference", "contiguous-max", "contiguous-pow2", "contiguous-exact", "contiguous-one-block")

GOOD = '''
from kvsuite.engine.reference import ReferenceEngine

class AcmeEngine(ReferenceEngine):
    """An engine of another house.

    More text.
    """

    name = "acme"
'''


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Return an installer of a distribution with one module and one engine."""

    def put(distribution: str, engine: str, source: str, target: str = "AcmeEngine") -> None:
        module = f"{distribution}_kv"
        (tmp_path / f"{module}.py").write_text(source, "utf-8")
        info = tmp_path / f"{distribution}-1.2.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.2\n", "utf-8"
        )
        entry = f"[kvsuite.engines]\n{engine} = {module}:{target}\n"
        (info / "entry_points.txt").write_text(entry, "utf-8")
        monkeypatch.syspath_prepend(str(tmp_path))

    return put


def test_built_in_engines_come_first() -> None:
    assert engine_names()[: len(BUILT_IN)] == BUILT_IN


def test_each_call_opens_a_fresh_engine(make_config: MakeConfig) -> None:
    config = make_config()
    first, second = open_engine("reference", config), open_engine("reference", config)
    assert type(first) is ReferenceEngine
    assert first is not second
    assert type(open_engine("contiguous-max", config)) is ContiguousMax


@pytest.mark.parametrize("name", [*BUILT_IN, "mutant:copy-skipped"])
def test_an_engine_goes_by_the_name_it_was_opened_with(
    name: str, make_config: MakeConfig, make_trace: Callable[..., object]
) -> None:
    assert open_engine(name, make_config(trace=make_trace((4, 4)), max_model_tokens=8)).spec.name == name


def test_an_unknown_name_lists_the_known_ones(make_config: MakeConfig) -> None:
    with pytest.raises(
        UnknownEngine, match=r"unknown engine 'vlm': expected one of reference, contiguous-max"
    ):
        open_engine("vlm", make_config())


def test_an_unknown_mutant_lists_the_known_ones(make_config: MakeConfig) -> None:
    with pytest.raises(UnknownEngine, match=r"unknown mutant 'nothing': expected one of .*stale-key"):
        open_engine("mutant:nothing", make_config())


@pytest.mark.parametrize("name", ["vlm@0.11", "vllm@", "@1", "reference@1"])
def test_versions_are_had_of_real_engines_only(name: str, make_config: MakeConfig) -> None:
    with pytest.raises(UnknownEngine, match=rf"'{name}': expected NAME@VERSION .* one of vllm, transformers"):
        open_engine(name, make_config())


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Let this interpreter be the environment of every version; what was asked for is noted."""
    found: list[tuple[str, str]] = []

    def ensure(name: str, version: str, *, loader: str | None) -> environments.Environment:
        if version == "0":
            raise EnvironmentUnavailable(f"{name} has no version {version}")
        found.append((name, version))
        return environments.Environment(
            name, version, loader or "full", Path(sys.executable), Path(sys.prefix)
        )

    monkeypatch.setattr(environments, "ensure", ensure)
    monkeypatch.setitem(registry.ADAPTERS, "reference", "kvsuite.engine.reference:ReferenceEngine")
    return found


def test_a_version_runs_in_its_environment(asked: list[tuple[str, str]], make_config: MakeConfig) -> None:
    """The engine goes by its own name there, and tells its own version."""
    engine = open_engine("reference@newest", make_config())
    assert asked == [("reference", "newest")]
    assert isinstance(engine, HostedEngine)
    assert engine.spec == open_engine("reference", make_config()).spec


def test_an_environment_that_cannot_be_had_is_no_fault_of_the_engine(
    asked: list[tuple[str, str]], make_config: MakeConfig
) -> None:
    with pytest.raises(EnvironmentUnavailable, match=r"^reference has no version 0$"):
        open_engine("reference@0", make_config())
    assert asked == []


def test_real_engines_are_listed_by_what_they_are() -> None:
    """Their first line is read without their package."""
    found = {engine.name: engine for engine in describe_engines()}
    for name in ("vllm", "transformers", "sglang", "lmdeploy", "tokasaurus"):
        assert found[name].error is None, name
        assert found[name].summary


def test_mutants_are_listed_nowhere() -> None:
    assert not any(name.startswith("mutant") for name in engine_names())
    assert not any(engine.name.startswith("mutant") for engine in describe_engines())


def test_an_installed_engine_is_found_and_opened(install: Install, make_config: MakeConfig) -> None:
    install("goodhouse", "acme", GOOD)
    assert "acme" in engine_names()
    assert open_engine("acme", make_config()).spec.name == "acme"
    (found,) = [engine for engine in describe_engines() if engine.name == "acme"]
    assert (found.origin, found.summary, found.error) == (
        "goodhouse 1.2",
        "An engine of another house.",
        None,
    )


def test_a_broken_package_is_named_and_hides_no_other(install: Install, make_config: MakeConfig) -> None:
    install("brokenhouse", "broken", "import a_module_that_is_not_there\n")
    install("goodhouse2", "acme", GOOD)
    with pytest.raises(
        EngineError, match=r"engine 'broken' \(brokenhouse_kv:AcmeEngine, from brokenhouse 1.2\)"
    ):
        open_engine("broken", make_config())
    assert open_engine("acme", make_config()).spec.name == "acme"
    errors = {engine.name: engine.error for engine in describe_engines()}
    assert "a_module_that_is_not_there" in (errors["broken"] or "")
    assert errors["reference"] is errors["acme"] is None


def test_two_packages_with_one_name_are_both_named(install: Install, make_config: MakeConfig) -> None:
    install("house1", "twice", GOOD)
    install("house2", "twice", GOOD)
    with pytest.raises(EngineError, match=r"'twice' is registered by house1 1.2 and house2 1.2"):
        open_engine("twice", make_config())


def test_an_installed_engine_never_replaces_a_built_in_one(install: Install, make_config: MakeConfig) -> None:
    install("cuckoo", "reference", GOOD)
    assert type(open_engine("reference", make_config())) is ReferenceEngine
    assert engine_names().count("reference") == 1


@pytest.mark.parametrize(
    ("source", "target", "message"),
    [
        ("AcmeEngine = 3\n", "AcmeEngine", "is a int, expected a callable"),
        ("AcmeEngine = object\n", "Missing", "cannot be loaded: AttributeError"),
        ("AcmeEngine = lambda config: 3\n", "AcmeEngine", r"\(int\) lacks spec, admit, extend"),
        ("raise SystemExit(0)\n", "AcmeEngine", "cannot be loaded: SystemExit: 0"),
        (
            "def AcmeEngine(config): raise KeyError(5)\n",
            "AcmeEngine",
            "'odd' raised KeyError when it was opened",
        ),
        (
            GOOD + "    spec = property(lambda self: 1 // 0)\n",
            "AcmeEngine",
            "raised ZeroDivisionError when asked",
        ),
        (GOOD + "    spec = 'me'\n", "AcmeEngine", "spec of AcmeEngine is 'me', expected an EngineSpec"),
    ],
)
def test_what_is_not_an_engine_is_refused(
    install: Install, make_config: MakeConfig, source: str, target: str, message: str
) -> None:
    install(f"odd{len(source)}{target.lower()}", "odd", source, target)
    with pytest.raises(EngineError, match=message):
        open_engine("odd", make_config())


def test_a_claim_without_its_verb_is_refused(install: Install, make_config: MakeConfig) -> None:
    hidden = GOOD + "    @property\n    def fork(self): raise AttributeError\n"
    install("claims", "claims", hidden)
    with pytest.raises(EngineError, match=r"engine 'claims' \(AcmeEngine\) lacks fork \(claims FORK\)"):
        open_engine("claims", make_config())


def test_a_refused_configuration_is_told_as_it_is(make_config: MakeConfig) -> None:
    with pytest.raises(ConfigError, match="unknown option 'x'"):
        open_engine("reference", make_config(options={"x": 1}))


def test_every_capability_is_claimed_by_a_built_in_engine(make_config: MakeConfig) -> None:
    """So that each case that asks for one runs on a sound engine, and none is a promise on paper."""
    ini = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text("utf-8"))
    names = ["reference", *ini["tool"]["pytest"]["kvsuite_specimens"]]
    built_in = {engine.name for engine in describe_engines() if engine.origin == "built-in"}
    assert set(names) <= built_in
    specs = [open_any_engine(name, make_config(max_model_tokens=64)).spec for name in names]
    assert set().union(*(spec.capabilities for spec in specs)) == set(Capability)
