"""Nothing is left over: every golden has a case, and every known deviation is about one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from kvsuite.golden.store import GoldenStore
    from kvsuite.plugin.selection import Collected


@pytest.fixture(autouse=True)
def _whole_suite(collected: Collected) -> None:
    if collected.missing is not None:
        pytest.skip(f"only the whole suite can tell what is left over: {collected.missing}")


def test_every_golden_has_a_case(
    collected: Collected, golden_store: GoldenStore, engines_under_test: tuple[str, ...]
) -> None:
    orphans = [
        str(path)
        for name in engines_under_test
        for path in golden_store.orphans(collected.golden_cases, name)
    ]
    assert not orphans, (
        f"{len(orphans)} goldens have no case any more; delete them, or run with the traces they were "
        f"recorded with: rm {' '.join(orphans)}"
    )


def test_every_known_deviation_is_about_a_case(collected: Collected) -> None:
    named = {name for case in collected.cases for name in (case, case.partition("[")[0])}
    stale = [entry.case for entry in collected.deviations if entry.case not in named]
    assert not stale, f"known deviations of cases that are gone; delete or correct them: {', '.join(stale)}"
