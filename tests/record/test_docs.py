from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import msgspec
import pytest

from kvsuite.record.decision_rows import BurstRow, DecisionRow, LifecycleRow, PercentileRow, PhaseRow
from kvsuite.record.drift_rows import DriftColumn, DriftFootprint, DriftPool, DriftRow
from kvsuite.record.schema import SCHEMA_VERSION, AnyLine, ComparisonRow, MatrixRow, PoolFacts, SweepRow

PAGE = (Path(__file__).parents[2] / "docs" / "run-record.md").read_text(encoding="utf-8")
LINES = get_args(AnyLine)


def section(kind: str) -> str:
    found = re.search(rf"^## `{kind}`$(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    assert found, f"docs/run-record.md has no section for {kind}"
    return found[1]


@pytest.mark.parametrize("line", LINES, ids=lambda line: str(line.__struct_config__.tag))
def test_every_field_of_every_kind_is_documented(line: type[msgspec.Struct]) -> None:
    text = section(str(line.__struct_config__.tag))
    missing = [field.name for field in msgspec.structs.fields(line) if f"`{field.name}`" not in text]
    assert missing == []


@pytest.mark.parametrize(
    ("kind", "part"),
    [
        ("engine", PoolFacts),
        ("comparison", ComparisonRow),
        ("sweep", SweepRow),
        ("matrix", MatrixRow),
        *(("decision", part) for part in (DecisionRow, BurstRow, LifecycleRow, PhaseRow, PercentileRow)),
        *(("drift", part) for part in (DriftRow, DriftPool, DriftColumn, DriftFootprint)),
    ],
)
def test_every_field_inside_a_line_is_documented(kind: str, part: type[msgspec.Struct]) -> None:
    missing = [field.name for field in msgspec.structs.fields(part) if f"`{field.name}`" not in section(kind)]
    assert missing == []


def test_the_page_documents_no_kind_that_does_not_exist() -> None:
    kinds = set(re.findall(r"^## `(\w+)`$", PAGE, re.MULTILINE))
    assert kinds == {line.__struct_config__.tag for line in LINES}
    assert f"schema **{SCHEMA_VERSION}**" in PAGE


@pytest.mark.parametrize("field", ["outcome", "verdict"])
def test_every_outcome_and_verdict_is_named(field: str) -> None:
    (line,) = [line for line in LINES if field in line.__struct_fields__]
    kind = str(line.__struct_config__.tag)
    (found,) = [f for f in msgspec.structs.fields(line) if f.name == field]
    assert [word for word in get_args(found.type) if f"`{word}`" not in section(kind)] == []


def test_every_verdict_on_drift_is_named() -> None:
    (found,) = [f for f in msgspec.structs.fields(DriftRow) if f.name == "verdict"]
    words = get_args(get_args(found.type)[0])
    assert len(words) == 3
    assert [word for word in words if f"`{word}`" not in section("drift")] == []
