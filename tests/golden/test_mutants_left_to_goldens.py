"""The committed goldens see what no law can: an engine that is sound and allocates otherwise."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cases.regression.test_golden_ledgers import POOLS, STEP
from kvsuite.cache.layout import Dtype, model_layout
from kvsuite.engine.config import EngineConfig
from kvsuite.engine.reference import ReferenceEngine
from kvsuite.golden.codec import Observed
from kvsuite.golden.judge import Verdict
from kvsuite.golden.key import Question, asked_recipe
from kvsuite.golden.store import GoldenStore
from kvsuite.mutants import MUTANTS
from kvsuite.mutants.table import GOLDEN
from kvsuite.replay.driver import replay
from kvsuite.sweep.lengths import longest_declared_tokens
from kvsuite.trace.identity import content_hash
from kvsuite.trace.load import load_trace

if TYPE_CHECKING:
    from kvsuite.golden.judge import Judgement

STORE = GoldenStore(Path(__file__).parents[2] / "goldens")
WORKLOADS = ("shared-prefix", "thrash")
KEPT = {
    "free-list-fifo": {"shared-prefix": Verdict.FOOTPRINT, "thrash": Verdict.FOOTPRINT},
    "evicts-newest": {"shared-prefix": Verdict.REGRESSION, "thrash": Verdict.REGRESSION},
}
"""What each workload's golden says of each. A queue of free blocks changes ids and no count; evicting the
newest block loses hits."""


def judged(engine_type: type[ReferenceEngine], workload: str) -> Judgement:
    """Return what the goldens of the reference say of an engine that calls itself the reference."""
    trace = load_trace(workload)
    layout = model_layout("tiny").with_(dtype=Dtype.BFLOAT16)
    config = EngineConfig(
        layout, 16, POOLS[workload], max_model_tokens=longest_declared_tokens(trace), trace=trace
    )
    engine = type("Engine", (engine_type,), {"name": ReferenceEngine.name})(config)
    done = replay(trace, engine, scheduler=STEP)
    assert done.violations == ()
    question = Question(
        case=f"regression/test_golden_ledgers.py::test_ledger[{workload}]",
        trace_name=trace.source.name,
        trace_hash=content_hash(trace),
        layout=str(layout),
        dtype=layout.dtype.value,
        recipe=asked_recipe(config, STEP),
    )
    return STORE.judge(Observed(done.spec, done.spec, question, done.timeline, {}))


@pytest.mark.parametrize("workload", WORKLOADS)
def test_the_reference_matches(workload: str) -> None:
    judgement = judged(ReferenceEngine, workload)
    assert (judgement.verdict, judgement.lines_differ) == (Verdict.MATCH, 0)


@pytest.mark.parametrize("workload", WORKLOADS)
@pytest.mark.parametrize("fault", KEPT)
def test_a_sound_engine_that_allocates_otherwise_is_told_from_it(fault: str, workload: str) -> None:
    engine_type = MUTANTS[fault].factory
    assert isinstance(engine_type, type)
    assert issubclass(engine_type, ReferenceEngine)
    judgement = judged(engine_type, workload)
    assert judgement.verdict is KEPT[fault][workload]
    assert not judgement.passes(strict_footprint=True)
    assert judgement.sentence


def test_these_are_the_mutants_that_are_left_to_goldens() -> None:
    assert set(KEPT) == {name for name, mutant in MUTANTS.items() if mutant.caught_by == GOLDEN}
