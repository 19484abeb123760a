"""A case is called the same from the checkout and from a wheel, on every engine."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

import kvsuite
from kvsuite.plugin.case_id import case_id, cases_root, engine_of

if TYPE_CHECKING:
    from collections.abc import Callable

SHIPPED = Path(kvsuite.__file__).parent / "cases"


def _item(path: Path, nodeid: str, **parameters: str) -> pytest.Item:
    found: dict[str, Any] = {
        "path": path,
        "nodeid": nodeid,
        "config": SimpleNamespace(rootpath=Path("/repo")),
    }
    if parameters:
        found["callspec"] = SimpleNamespace(params=parameters)
    return cast("pytest.Item", SimpleNamespace(**found))


@pytest.mark.parametrize(
    ("path", "nodeid"),
    [
        (Path("/repo/cases/conformance/test_x.py"), "cases/conformance/test_x.py::test_y[acme-chat-16]"),
        (
            SHIPPED / "conformance/test_x.py",
            "../lib/kvsuite/cases/conformance/test_x.py::test_y[acme-chat-16]",
        ),
        (SHIPPED / "conformance/test_x.py", "conformance/test_x.py::test_y[acme-chat-16]"),
    ],
    ids=["checkout", "wheel", "wheel from its root"],
)
def test_the_same_id_wherever_it_lies(path: Path, nodeid: str) -> None:
    item = _item(path, nodeid, engine_name="acme")
    assert case_id(item) == "conformance/test_x.py::test_y[chat-16]"
    assert engine_of(item) == "acme"


@pytest.mark.parametrize(
    ("name", "engine", "expected"),
    [
        ("test_y[acme]", "acme", "test_y"),
        ("test_y[contiguous-max-16]", "contiguous-max", "test_y[16]"),
        ("test_y[mutant:double-free-16]", "mutant:double-free", "test_y[16]"),
        ("test_y[acme@1.2-a[b]]", "acme@1.2", "test_y[a[b]]"),
        ("TestGroup::test_y[acme-16]", "acme", "TestGroup::test_y[16]"),
        ("test_y[16]", None, "test_y[16]"),
        ("test_y", None, "test_y"),
    ],
)
def test_the_engine_is_no_part_of_a_case(name: str, engine: str | None, expected: str) -> None:
    parameters = {} if engine is None else {"engine_name": engine}
    item = _item(Path("/repo/cases/test_x.py"), f"cases/test_x.py::{name}", **parameters)
    assert case_id(item) == f"test_x.py::{expected}"


def test_a_test_outside_the_cases_is_named_from_the_rootdir() -> None:
    assert cases_root(Path("/repo/tests/test_x.py")) is None
    assert (
        case_id(_item(Path("/repo/tests/test_x.py"), "tests/test_x.py::test_y")) == "tests/test_x.py::test_y"
    )


def test_the_nearest_folder_of_that_name_is_the_root() -> None:
    assert cases_root(Path("/home/cases/repo/cases/a/test_x.py")) == Path("/home/cases/repo/cases")


def test_an_installed_suite_collects_under_the_same_ids(
    project: pytest.Pytester, add_case: Callable[..., None]
) -> None:
    """What stands in a wheel as ``kvsuite.cases`` is imitated by a package of another name."""
    add_case(
        "from kvsuite.plugin.case_id import case_id\n\n"
        "def test_shown(engine_name, request, summary_line):\n"
        "    summary_line(f'ID {case_id(request.node)}')\n",
        "conformance/test_ids.py",
    )
    expected = ["ID conformance/test_ids.py::test_shown"]
    project.runpytest("cases", "-k", "test_shown").stdout.fnmatch_lines(expected)
    elsewhere = project.path / "site" / "kvsuite_like"
    elsewhere.mkdir(parents=True)
    (project.path / "cases").rename(elsewhere / "cases")
    project.syspathinsert(elsewhere.parent)
    ended = project.runpytest("--engine=reference", "--pyargs", "kvsuite_like.cases", "-k", "test_shown")
    ended.stdout.fnmatch_lines(expected)
