"""Decisions, glossary, changelog and the shape of the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import kvsuite
from kvsuite.ledger.row import COLUMN_NAMES

ROOT = Path(__file__).resolve().parents[2]
DECISIONS = sorted((ROOT / "docs" / "decisions").glob("*.md"))
MAX_MODULE_LINES = 300


def test_decisions_are_numbered_without_a_gap() -> None:
    assert [path.name[:4] for path in DECISIONS] == [
        f"{number:04}" for number in range(1, len(DECISIONS) + 1)
    ]
    assert len(DECISIONS) >= 8


@pytest.mark.parametrize("path", DECISIONS, ids=lambda path: path.stem)
def test_a_decision_has_a_title_and_its_three_parts(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.startswith(f"# {path.name[:4]} ")
    assert re.findall(r"^## (.*)$", text, re.MULTILINE) == ["Context", "Decision", "Consequence"]
    assert len(text.splitlines()) <= 30


def test_the_glossary_explains_every_column() -> None:
    text = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`(\w+)`", text))
    assert set(COLUMN_NAMES) <= named, sorted(set(COLUMN_NAMES) - named)


WORDS = (
    *("TTFT", "page", "watermark", "utilisation", "allocation efficiency", "slack share", "copy-on-write"),
    *("golden", "absent", "committed", "unattributed", "workspace", "operational waste", "qualified tokens"),
)


@pytest.mark.parametrize("word", WORDS)
def test_the_glossary_has_the_words_of_the_report(word: str) -> None:
    assert word in (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")


def test_the_changelog_knows_this_version() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert f"\n## {kvsuite.__version__}\n" in text


def test_modules_stay_short() -> None:
    long = {
        str(path.relative_to(ROOT)): lines
        for path in (ROOT / "kvsuite").rglob("*.py")
        if (lines := len(path.read_text(encoding="utf-8").splitlines())) > MAX_MODULE_LINES
    }
    assert not long
