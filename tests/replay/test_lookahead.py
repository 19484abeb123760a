"""Drafts in a replay: asked for at each decode where the engine claims look-ahead, all of them rejected."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from kvsuite.errors import ConfigError
from kvsuite.replay.batch import Ending, SchedulerConfig
from kvsuite.replay.driver import replay

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvsuite.engine.contract import Engine
    from kvsuite.trace.model import Trace

    MakeTrace = Callable[..., Trace]
    MakeEngine = Callable[..., Engine]
AHEAD = SchedulerConfig(lookahead_tokens=4)


def test_each_decode_reserves_ahead_and_gives_back(make_trace: MakeTrace, make_engine: MakeEngine) -> None:
    """b = 4, 3 prompt tokens, 3 answers, 4 ahead: 3 | 4 + 4 | 5 + 4 | 6 + 4 tokens in 1, 2, 3, 3 blocks."""
    trace = make_trace({"prompt_tokens": 3, "output_tokens": 3})
    done = replay(trace, make_engine("reference-lookahead", block_size=4, num_blocks=8), scheduler=AHEAD)
    pool = done.timeline.pools[0]
    assert done.violations == ()
    assert pool.column("live_blocks").tolist() == [1, 2, 3, 3]
    assert pool.column("slack").tolist() == [1, 4, 7, 6]
    assert pool.column("over_reserved").tolist() == [0, 0, 0, 0]


def test_an_engine_without_look_ahead_is_never_asked(make_trace: MakeTrace, make_engine: MakeEngine) -> None:
    trace = make_trace({"prompt_tokens": 3, "output_tokens": 3})
    runs = [
        replay(trace, make_engine("reference", block_size=4, num_blocks=8), scheduler=scheduler)
        for scheduler in (SchedulerConfig(), AHEAD)
    ]
    assert np.array_equal(runs[0].timeline.pools[0].rows, runs[1].timeline.pools[0].rows)


def test_drafts_give_way_before_their_sequence_does(make_trace: MakeTrace, make_engine: MakeEngine) -> None:
    """Two blocks of 4 hold 8 tokens and never 5 + 4: the sequence goes on without drafts."""
    trace = make_trace({"prompt_tokens": 3, "output_tokens": 5})
    done = replay(trace, make_engine("reference-lookahead", block_size=4, num_blocks=2), scheduler=AHEAD)
    (outcome,) = done.outcomes
    assert done.violations == ()
    assert (outcome.ending, outcome.preemptions) == (Ending.FINISHED, 0)
    assert done.timeline.pools[0].total("refused_growths") == 4


def test_a_younger_sequence_gives_way_to_drafts(make_trace: MakeTrace, make_engine: MakeEngine) -> None:
    """Four blocks of 4: the oldest asks for 5 + 4 tokens, so the youngest of 4 tokens has to go."""
    row = {"prompt_tokens": 4, "output_tokens": 2}
    done = replay(
        make_trace(row, row), make_engine("reference-lookahead", block_size=4, num_blocks=3), scheduler=AHEAD
    )
    assert done.violations == ()
    assert [outcome.preemptions for outcome in done.outcomes] == [0, 1]
    assert {outcome.ending for outcome in done.outcomes} == {Ending.FINISHED}


def test_look_ahead_is_no_negative_number() -> None:
    with pytest.raises(ConfigError, match="lookahead_tokens is -1, expected 0 or more"):
        SchedulerConfig(lookahead_tokens=-1)
