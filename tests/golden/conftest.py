"""Ledgers written out by hand: a pool of 8 blocks of 4 tokens, one sequence that grows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from kvsuite.engine.contract import EngineSpec
from kvsuite.engine.snapshot import PoolKey, PoolSpec
from kvsuite.golden.codec import Observed
from kvsuite.golden.key import Question
from kvsuite.golden.store import GoldenStore
from kvsuite.ledger.row import ABSENT, COLUMN_NAMES, INDEX
from kvsuite.ledger.timeline import PoolTimeline, Timeline

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

Row = dict[str, int | None]

GROWTH: tuple[Row, ...] = (
    {"payload": 3, "slack": 1, "free": 28, "logical": 3, "allocated": 1, "written": 3},
    {"payload": 4, "slack": 0, "free": 28, "logical": 4, "written": 1},
    {"payload": 5, "slack": 3, "free": 24, "logical": 5, "allocated": 1, "written": 1},
    {"payload": 0, "slack": 0, "free": 32, "logical": 0, "freed": 2},
)
FOOTPRINT: tuple[Row, ...] = tuple(
    {"distinct_touched": touched, "id_order": order}
    for touched, order in ((1, 11), (1, 11), (2, 57), (2, 57))
)
"""A prompt of 3 tokens, two decoded ones, the end: 2 blocks taken, 2 given back."""


@pytest.fixture
def growth() -> tuple[Row, ...]:
    return tuple({**row, **which} for row, which in zip(GROWTH, FOOTPRINT, strict=True))


@pytest.fixture
def timeline() -> Callable[..., Timeline]:
    """Build a timeline from rows, one pool or several; what a row does not name is 0, ``None`` is absent."""

    def build(*pools: tuple[Row, ...], steps: list[int] | None = None) -> Timeline:
        found = []
        for group, rows in enumerate(pools):
            table = np.zeros((len(rows), len(COLUMN_NAMES)), np.int64)
            for index, row in enumerate(rows):
                for name, value in row.items():
                    table[index, INDEX[name]] = ABSENT if value is None else value
            spec = PoolSpec(key=PoolKey(group=group), num_blocks=8, block_size=4, bytes_per_token=64)
            found.append(PoolTimeline(spec=spec, rows=table))
        count = len(pools[0])
        numbers = np.array(steps if steps is not None else range(count), np.int64)
        return Timeline(steps=numbers, pools=tuple(found))

    return build


@pytest.fixture
def engine() -> Callable[..., EngineSpec]:
    def build(version: str = "1.0", **effective: Any) -> EngineSpec:
        values: dict[str, int | str | bool] = {"cow": "lazy", "block_size": 4, "num_blocks": 8, **effective}
        return EngineSpec("acme", version, 1, (), frozenset(), values, "tiny layout", "bfloat16")

    return build


@pytest.fixture
def observe(
    timeline: Callable[..., Timeline], engine: Callable[..., EngineSpec], growth: tuple[Row, ...]
) -> Callable[..., Observed]:
    """Build what a run observed: rows on a version of the engine ``acme``."""

    def build(
        *pools: tuple[Row, ...],
        version: str = "1.0",
        case: str = "conformance/test_growth.py::test_one[chat]",
        steps: list[int] | None = None,
        provenance: dict[str, str] | None = None,
        label: str = "",
        **effective: Any,
    ) -> Observed:
        question = Question(
            case=case,
            label=label,
            trace_name="chat",
            trace_hash="kvt1-00ff",
            layout="tiny layout",
            dtype="bfloat16",
            recipe={"block_size": 4, "num_blocks": 8, "step_us": 50_000},
        )
        spec = engine(version, **effective)
        ledger = timeline(*(pools or (growth,)), steps=steps)
        return Observed(spec, spec, question, ledger, provenance or {})

    return build


@pytest.fixture
def store(tmp_path: Path) -> GoldenStore:
    return GoldenStore(tmp_path / "goldens")
