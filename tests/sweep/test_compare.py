"""The comparison that the field's handbook prints, measured on engines."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from kvsuite.cache.layout import model_layout
from kvsuite.engine.registry import open_engine
from kvsuite.errors import ConfigError, EngineError
from kvsuite.replay.scheduler import SchedulerConfig
from kvsuite.sweep import compare
from kvsuite.sweep.compare import Comparison, comparison_line, held_at_once, run_strategy, strategies
from kvsuite.trace.synthetic import synthetic

if TYPE_CHECKING:
    from kvsuite.engine.config import EngineConfig
    from kvsuite.engine.contract import Engine


@pytest.fixture(scope="module")
def comparison() -> Comparison:
    return Comparison(
        trace=synthetic("handbook"),
        churn=synthetic("churn"),
        layout=model_layout("tiny"),
        scheduler=SchedulerConfig(),
    )


def handbook_lengths() -> list[int]:
    """Draw the lengths from the published recipe, apart from the workload's own code."""
    np.random.seed(42)
    np.random.uniform(size=8)
    drawn = np.random.exponential(scale=300, size=50)
    return [int(min(max(length, 50), 2048)) for length in drawn]


def test_the_lengths_are_the_published_ones(comparison: Comparison) -> None:
    assert comparison.lengths.tolist() == handbook_lengths()
    assert (comparison.lengths.min(), comparison.lengths.max()) == (50, 1051)
    assert round(float(comparison.lengths.mean())) == 292


def test_what_engines_hold_at_once_is_what_the_handbook_prints(comparison: Comparison) -> None:
    held = {engine: held_at_once(comparison, engine) for engine in strategies(comparison)}
    lengths = handbook_lengths()
    powers = [next(2**k for k in range(12) if 2**k >= length) for length in lengths]
    assert held == {
        "contiguous-max": 102_400,
        "contiguous-pow2": sum(powers),
        "contiguous-exact": 14_582,
        "reference": 14_976,
    }
    assert sum(lengths) == 14_582
    assert f"{14_582 / held['contiguous-max']:.1%} {14_582 / held['reference']:.1%}" == "14.2% 97.4%"
    assert f"{1 - held['reference'] / held['contiguous-max']:.1%}" == "85.4%"
    assert f"{held['contiguous-max'] / held['reference']:.1f}" == "6.8"


@pytest.mark.parametrize("size", [1, 16, 64])
def test_a_paged_engine_holds_whole_blocks(size: int, comparison: Comparison) -> None:
    asked = replace(comparison, block_size=size)
    assert held_at_once(asked, "reference") == sum(-(-n // size) * size for n in handbook_lengths())


def test_only_contiguous_allocation_is_refused_by_holes(comparison: Comparison) -> None:
    results = {engine: run_strategy(comparison, engine) for engine in strategies(comparison)}
    events = {engine: result.row.fragmentation_events for engine, result in results.items()}
    assert events.pop("reference") == 0
    assert all(count > 0 for count in events.values()), events
    for result in results.values():
        assert not result.churn.violations
        assert result.row.fragmentation_events <= result.row.refused_admissions
    line = comparison_line(
        comparison, [result.row for result in results.values()], case="c", trace="handbook", churn="churn"
    )
    assert (line.max_tokens, line.block_size, len(line.lengths)) == (2048, 16, 50)
    assert "a replay of churn on 4,096 slots" in line.caveat


def test_a_request_longer_than_the_maximum_is_refused(comparison: Comparison) -> None:
    with pytest.raises(ConfigError, match="the longest request holds 1051 tokens"):
        replace(comparison, max_tokens=1050)


def test_a_churn_pool_without_room_for_one_reservation_is_refused(comparison: Comparison) -> None:
    with pytest.raises(ConfigError, match="churn pool of 2047 tokens"):
        replace(comparison, churn_tokens=2047)


def test_an_engine_that_refuses_what_fits_is_an_error(
    comparison: Comparison, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = open_engine

    def half(name: str, config: EngineConfig) -> Engine:
        return opened(name, replace(config, num_blocks=config.num_blocks // 2))

    monkeypatch.setattr(compare, "open_engine", half)
    with pytest.raises(EngineError, match="contiguous-max refused request 25 of"):
        held_at_once(comparison, "contiguous-max")
