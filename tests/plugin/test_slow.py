"""Cases marked slow or timing run where the mark expression names them, whatever else it asks for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

CASES = """
import pytest

@pytest.mark.slow
def test_minutes(engine_name):
    pass

@pytest.mark.timing
def test_timed(engine_name):
    pass

def test_moments(engine_name):
    pass
"""


@pytest.mark.parametrize(
    ("expression", "ran"),
    [
        (None, ["test_moments"]),
        ("not timing", ["test_moments"]),
        ("timing", ["test_timed"]),
        ("slow", ["test_minutes"]),
        ("slow or timing", ["test_minutes", "test_timed"]),
    ],
)
def test_they_run_where_they_are_named(
    project: pytest.Pytester, add_case: Callable[..., None], expression: str | None, ran: list[str]
) -> None:
    add_case(CASES)
    words = [] if expression is None else ["-m", expression]
    ended = project.runpytest("--engine=acme", "-v", "-n", "0", "cases/conformance/test_more.py", *words)
    passed = [line for line in ended.outlines if " PASSED" in line]
    assert sorted(name for line in passed for name in line.split("::")[1].split("[")[:1]) == ran
    ended.assert_outcomes(passed=len(ran), deselected=3 - len(ran))
