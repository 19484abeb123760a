"""Times of requests, worked out step by step on paper; the driver and the compiled core come to the same."""

from __future__ import annotations

import math
from dataclasses import replace
from decimal import Decimal
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

pytest.importorskip("numba", reason="the compiled core needs numba: install kvsuite[fast]")

from kvsuite.cache.layout import model_layout
from kvsuite.engine.config import EngineConfig
from kvsuite.engine.reference import ReferenceEngine
from kvsuite.errors import ConfigError
from kvsuite.replay.batch import Ending, SchedulerConfig, scheduler_recipe
from kvsuite.replay.driver import Replay, replay
from kvsuite.sweep import clock
from kvsuite.sweep.cells import Cell
from kvsuite.sweep.clock import FEATURES, StepCosts, clocked_replay, clocked_replay_on
from kvsuite.trace.load import load_trace
from kvsuite.trace.model import Trace, TraceSource
from kvsuite.trace.rows import Row, trace_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvsuite.sweep.clock import ClockedReplay
    from kvsuite.sweep.traces import TraceRef

    Play = Callable[..., ClockedReplay]

COSTS = StepCosts(
    base_us=100,
    sequence_us=10,
    context_token_us=1,
    prefill_token_us=2,
    prefill_pair_us=3,
    table_entry_us=5,
    block_us=7,
)
FOUR = SchedulerConfig(max_sequences=4, max_step_tokens=4)


def requests(*rows: dict[str, Any]) -> Trace:
    given = [Row(request_id=f"r{k}", **{"timestamp": 0, **row}) for k, row in enumerate(rows)]
    return trace_of(given, TraceSource("test", "by hand"), block_size=4)


@pytest.fixture(params=["driver", "compiled"])
def play(request: pytest.FixtureRequest) -> Play:
    """Replay on blocks of 4 tokens, with no prefix cache."""

    def run(
        trace: Trace, costs: StepCosts, scheduler: SchedulerConfig = FOUR, num_blocks: int = 16
    ) -> ClockedReplay:
        config = EngineConfig(model_layout("tiny"), 4, num_blocks, prefix_cache=False)
        if request.param == "compiled":
            return clocked_replay(trace, config, scheduler, costs)
        return clocked_replay_on(ReferenceEngine(config), trace, scheduler, costs)

    return run


def same(found: np.ndarray[Any, Any], expected: list[float]) -> None:
    np.testing.assert_array_equal(found, np.array(expected))


def test_a_prompt_in_chunks_an_answer_and_an_idle_gap(play: Play) -> None:
    """6 + 3 tokens, 4 a step; 2 + 1 tokens at 4,000 us, when the first has long ended.

    step  does                                        lasts                                     ends
    0     positions 0..4, 1 block                     100 + 4*2 + (1+2+3+4)*3 + 1*5 + 1*7 = 150    150
    1     positions 4..6, 1 more                      100 + 2*2 + (5+6)*3 + 2*5 + 1*7     = 154    304
    2     length 7                                    100 + 10 + 7 + 2*5                  = 127    431
    3     length 8                                    100 + 10 + 8 + 2*5                  = 128    559
    4     length 9, 1 more block                      100 + 10 + 9 + 3*5 + 1*7            = 141    700
    5     positions 0..2, 1 block, 3 were given back  100 + 2*2 + (1+2)*3 + 1*5 + 4*7     = 146  4,146
    6     length 3                                    100 + 10 + 3 + 1*5                  = 118  4,264
    """
    done = play(
        requests(
            {"input_length": 6, "output_length": 3},
            {"timestamp": 4, "input_length": 2, "output_length": 1},
        ),
        COSTS,
    )
    same(done.step_end_us, [150, 304, 431, 559, 700, 4146, 4264])
    same(done.running, [1] * 7)
    assert dict(zip(FEATURES, done.features[5].tolist(), strict=True)) == {
        "steps": 1,
        "sequences": 0,
        "context_tokens": 0,
        "prefill_tokens": 2,
        "prefill_pairs": 3,
        "table_entries": 1,
        "blocks": 4,
    }
    same(done.times.arrival_us, [0, 4000])
    same(done.times.ttft_us, [431, 4264 - 4000])
    same(done.times.itl_p99_us, [141, math.nan])
    same(done.times.output_tokens, [3, 1])
    same(done.times.prompt_tokens, [6, 2])
    assert [list(Ending)[k] for k in done.times.ending] == [Ending.FINISHED] * 2


def test_a_gap_by_preemption_is_a_gap(play: Play) -> None:
    """Twice 6 + 4 tokens in 4 blocks: after two answers each wants a third block, and the younger gives way.

    step  does                                     lasts                        ends
    0     both prompts, 4 blocks                   100 + 12*2 + 4*7    = 152      152
    1, 2  both answer                              100 + 2*10          = 120 each 272, 392
    3     2 blocks come back, the older takes one  100 + 10 + 3*7      = 131      523
    4     the older's last answer                  100 + 10            = 110      633
    5     3 come back, the younger computes 8      100 + 8*2 + 5*7     = 151      784
    6     it takes its third block                 100 + 10 + 7        = 117      901
    7     its last answer                          100 + 10            = 110    1,011
    """
    row = {"input_length": 6, "output_length": 4}
    costs = replace(COSTS, context_token_us=0, prefill_pair_us=0, table_entry_us=0)
    done = play(requests(row, row), costs, SchedulerConfig(4, 64), 4)
    same(done.step_end_us, [152, 272, 392, 523, 633, 784, 901, 1011])
    same(done.running, [2, 2, 2, 1, 1, 1, 1, 1])
    same(done.times.ttft_us, [272, 272])
    same(done.times.itl_p99_us, [523 - 392, 901 - 392])
    same(done.times.output_tokens, [4, 4])


def test_a_token_that_lapsed_comes_when_it_is_computed_again(play: Play) -> None:
    """A child (2) of a decoder (0) decodes while an older prompt (1) is computed, 4 tokens a step, 5 blocks.

    step 0  0 computes 4 tokens                    step 5  1 computes its last two and ends; 2 begins again
    step 1  0 answers, 1 computes 3                step 6  2 computes four more
    step 2  0 answers, 1 computes 3; 2 forks at 6  step 7  and two, among them the answer that lapsed
    step 3  0 copies its tail and answers, 2 answers, 1 computes two: no block is left
    step 4  0 answers for the last time, 2 is to answer, 1 wants its third block: 2 gives way, unheard
    step 8  2 answers for the last time
    """
    parent = {"input_length": 4, "output_length": 4}
    child = {"parent": "r0", "fork": "beam", "fork_at": 6}
    done = play(
        requests(
            parent,
            {"input_length": 12, "output_length": 0},
            {"input_length": 4, "output_length": 5, **child},
        ),
        StepCosts(base_us=100),
        FOUR,
        5,
    )
    same(done.step_end_us, [100.0 * k for k in range(1, 10)])
    features = done.features.tolist()
    assert features[3] == [1, 2, 7 + 7, 2, 7 + 8, 2 + 2 + 2, 1]
    assert features[4] == [1, 1, 8, 2, 9 + 10, 2 + 3, 1 + 1]
    same(done.times.arrival_us, [0, 0, 300])
    same(done.times.ttft_us, [200, math.nan, 400 - 300])
    same(done.times.itl_p99_us, [100, math.nan, 800 - 400])
    same(done.times.output_tokens, [4, 0, 3])


def test_clients_come_and_go_by_time(play: Play) -> None:
    """Steps of 100 us. 0 leaves at 301 us: the step that begins at 400 us sees it, after three answers.

    1 leaves after two answers, in step 3. 2 comes at 350 us: computed from 400 to 500 us, answered by 600 us.
    """
    row = {"input_length": 3, "output_length": 9}
    trace = requests(
        {**row, "cancel_at": Decimal("0.301")},
        {**row, "cancel_after": 2},
        {"timestamp": Decimal("0.35"), "input_length": 3, "output_length": 1},
    )
    done = play(trace, StepCosts(base_us=100), SchedulerConfig(4, 64))
    same(done.step_end_us, [100, 200, 300, 400, 500, 600])
    same(done.running, [2, 2, 2, 1, 1, 1])
    same(done.times.ttft_us, [200, 200, 250])
    same(done.times.itl_p99_us, [100, 100, math.nan])
    same(done.times.output_tokens, [3, 2, 1])
    assert [list(Ending)[k].value for k in done.times.ending] == ["cancelled", "cancelled", "finished"]


def test_the_percentile_is_the_nearest_rank_of_every_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    """200 requests in a pool where they give way to each other, gap by gap in plain Python."""
    trace = load_trace("thrash").head(200)
    longest = int((trace.prompt_tokens + trace.output_tokens).max())
    config = EngineConfig(model_layout("tiny"), 8, 2 * -(-longest // 8))
    monkeypatch.setattr(clock, "_TOKENS_AT_ONCE", 500)
    done = clocked_replay(trace, config, SchedulerConfig(64, 256), COSTS)
    assert done.replay.summary.total("preempted") > 20  # type: ignore[union-attr]
    log = done.replay.clock
    assert log is not None
    ends = [[] for _ in range(len(trace))]  # type: ignore[var-annotated]
    for request, first, last in log.token_spans.tolist():
        ends[request] += log.step_end_us[first : last + 1].tolist()
    for index, times in enumerate(ends):
        gaps = sorted(late - early for early, late in pairwise(times))
        expected = gaps[math.ceil(0.99 * len(gaps)) - 1] if gaps else math.nan
        np.testing.assert_equal(done.times.itl_p99_us[index], expected)
    same(done.times.output_tokens, trace.output_tokens.tolist())


def test_costs_below_zero_or_without_a_number_are_refused() -> None:
    with pytest.raises(ConfigError, match="block_us is -1"):
        StepCosts(block_us=-1)
    with pytest.raises(ConfigError, match="base_us is nan"):
        StepCosts(base_us=math.nan)


def test_a_step_is_the_sum_of_what_it_does() -> None:
    assert COSTS.step_us([1, 2, 3, 4, 5, 6, 7]) == 100 + 20 + 3 + 8 + 15 + 30 + 49


def test_without_costs_nothing_is_called_otherwise_than_before() -> None:
    plain = SchedulerConfig(4, 64, 7, 1)
    assert scheduler_recipe(plain) == {
        "max_sequences": 4,
        "max_step_tokens": 64,
        "step_us": 7,
        "lookahead_tokens": 1,
    }
    assert scheduler_recipe(replace(plain, costs=StepCosts(base_us=2.5)))["costs"] == (
        "base_us 2.5, sequence_us 0.0, context_token_us 0.0, prefill_token_us 0.0, prefill_pair_us 0.0, "
        "table_entry_us 0.0, block_us 0.0"
    )


def test_a_cell_on_another_clock_has_another_key(boundary: TraceRef) -> None:
    def key(costs: StepCosts | None) -> str:
        return Cell(
            trace=boundary,
            engine="reference",
            block_size=4,
            pool_bytes=2**18,
            layout=model_layout("tiny"),
            scheduler=SchedulerConfig(costs=costs),
        ).key

    assert len({key(None), key(StepCosts(base_us=1)), key(StepCosts(base_us=2))}) == 3


def test_steps_of_one_length_have_no_log() -> None:
    trace = requests({"input_length": 3, "output_length": 2})
    done: Replay = replay(trace, ReferenceEngine(EngineConfig(model_layout("tiny"), 4, 16)))
    assert done.clock is None
