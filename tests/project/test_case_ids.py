"""The check that a wheel holds the same cases as the checkout must fail when it does not."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from types import ModuleType

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def check() -> ModuleType:
    spec = importlib.util.spec_from_file_location("compare_case_ids", ROOT / ".ci" / "compare_case_ids.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("ours", "theirs", "status", "says"),
    [
        (["a", "b"], ["b", "a"], 0, "2 in the wheel, the same"),
        (["a", "b"], ["a"], 1, "only in the checkout: b"),
        (["a"], ["a", "c"], 1, "only in the wheel: c"),
        (["a"], ["a", "a"], 1, "NOT the same"),
        ([], [], 1, "NOT the same"),
    ],
)
def test_a_difference_is_named(
    ours: list[str],
    theirs: list[str],
    status: int,
    says: str,
    check: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def collected(python: str, targets: list[str], folder: Path) -> Any:
        return theirs if python == "wheel-python" else ours

    monkeypatch.setattr(check, "collected_by", collected)
    assert check.main("wheel-python") == status
    assert says in capsys.readouterr().out


def test_an_interpreter_that_cannot_collect_ends_the_check(check: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="cannot collect"):
        check.collected_by("false", ["cases"], tmp_path)
