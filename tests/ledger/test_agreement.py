"""Two ledgers of one trace agree at every step but for what is declared; where they part is found by hand."""

from __future__ import annotations

import numpy as np
import pytest

from kvsuite.cache.layout import model_layout
from kvsuite.engine.config import EngineConfig
from kvsuite.engine.registry import open_engine
from kvsuite.engine.snapshot import PoolKey, PoolSpec
from kvsuite.ledger.agreement import Declared, Side, first_disagreement
from kvsuite.ledger.row import ABSENT, COLUMN_NAMES, INDEX
from kvsuite.ledger.timeline import PoolTimeline
from kvsuite.replay.driver import replay
from kvsuite.replay.scheduler import SchedulerConfig
from kvsuite.trace.model import TraceSource
from kvsuite.trace.rows import Row, trace_of

GROWING = [Row(timestamp=0, input_length=3, output_length=3, hash_ids=[])]
"""Lengths 3, 4, 5 and 6 at steps 0 to 3: in blocks of 4 that is 1, 1, 2 and 2."""
GIVING_WAY = [Row(timestamp=0, input_length=4, output_length=5, hash_ids=[]) for _ in range(2)]


def played(
    engine: str, rows: list[Row] = GROWING, *, num_blocks: int = 8, ahead: int = 0, **options: int
) -> Side:
    config = EngineConfig(model_layout("tiny"), 4, num_blocks, max_model_tokens=16, options=options)
    trace = trace_of(rows, TraceSource("by hand", "agreement"), block_size=4)
    done = replay(trace, open_engine(engine, config), scheduler=SchedulerConfig(4, 64, 50_000, ahead))
    return Side(engine, done.timeline.steps, done.timeline.pools[0])


def declaring(side: Side, **declared: int | bool) -> Side:
    return Side(side.name, side.steps, side.pool, Declared(**declared))  # type: ignore[arg-type]


def test_an_engine_agrees_with_itself_and_with_one_that_keeps_blocks_back() -> None:
    plain = played("reference")

    assert first_disagreement(plain, played("reference")) is None
    assert first_disagreement(plain, played("reference", num_blocks=9, null_blocks=1)) is None


@pytest.mark.parametrize(
    ("mutant", "step", "columns"),
    [
        # One block too many at length 4, where the last block is exactly full.
        ("surplus-at-boundary", 1, ("live_blocks", "over_reserved")),
        # No block for the first token past it: length 5 in one block.
        ("late-block", 2, ("payload", "live_blocks", "slack")),
    ],
)
def test_a_block_too_many_or_too_late_is_found_at_its_step(
    mutant: str, step: int, columns: tuple[str, ...]
) -> None:
    found = first_disagreement(played("reference"), played(f"mutant:{mutant}"))

    assert found is not None
    assert (found.step, found.columns) == (step, columns)


def test_a_disagreement_shows_both_rows() -> None:
    found = first_disagreement(played("reference"), played("mutant:surplus-at-boundary"))

    assert str(found) == (
        "step 1, live_blocks, over_reserved: "
        "reference: running 1, logical 4, payload 4, live_blocks 1, slack 0, over_reserved 0; "
        "mutant:surplus-at-boundary: running 1, logical 4, payload 4, live_blocks 2, slack 0, over_reserved 4"
    )


def test_look_ahead_is_taken_away_only_where_it_is_declared() -> None:
    plain, ahead = played("reference"), played("reference-lookahead", ahead=3)

    # Lengths 4, 5, 6 reach 7, 8, 9 with 3 ahead: 2, 2 and 3 blocks of 4 instead of 1, 2 and 2.
    assert ahead.pool.column("live_blocks").tolist() == [1, 2, 2, 3]
    found = first_disagreement(plain, ahead)
    assert found is not None
    assert (found.step, found.columns) == (1, ("live_blocks", "slack"))
    for pair in (
        (plain, declaring(ahead, lookahead_tokens=3)),
        (declaring(ahead, lookahead_tokens=3), plain),
    ):
        assert first_disagreement(*pair) is None
    both = declaring(ahead, lookahead_tokens=3), declaring(plain, lookahead_tokens=3)
    assert first_disagreement(*both) is not None, "what both declare explains no difference"


Values = dict[str, int]


def written(
    name: str, *rows: Values, steps: list[int] | None = None, block_size: int = 4, **declared: bool
) -> Side:
    table = np.zeros((len(rows), len(COLUMN_NAMES)), np.int64)
    for index, row in enumerate(rows):
        for column, value in row.items():
            table[index, INDEX[column]] = value
    spec = PoolSpec(PoolKey(), num_blocks=8, block_size=block_size, bytes_per_token=64)
    numbers = np.array(range(len(rows)) if steps is None else steps, np.int64)
    return Side(name, numbers, PoolTimeline(spec, table), Declared(**declared))


LAZY = {"running": 2, "logical": 10, "payload": 5, "live_blocks": 2, "slack": 3}
"""5 tokens and a fork of them, in blocks of 4: the last block holds one token and is shared."""
AT_FORK = {"running": 2, "logical": 10, "payload": 6, "live_blocks": 3, "slack": 6}


def test_a_copy_at_the_fork_is_taken_away_only_where_it_is_declared() -> None:
    assert first_disagreement(written("lazy", LAZY), written("eager", AT_FORK, copies_at_fork=True)) is None
    undeclared = first_disagreement(written("lazy", LAZY), written("eager", AT_FORK))
    assert undeclared is not None
    assert undeclared.columns == ("payload", "live_blocks", "slack")


@pytest.mark.parametrize(
    "wrong",
    [
        # The block is there, and its slots are not accounted for.
        {**AT_FORK, "slack": 5},
        # Two more blocks where one child runs.
        {**AT_FORK, "live_blocks": 4, "slack": 10},
        # A token more than the two sequences have.
        {**AT_FORK, "logical": 11},
        # Fewer blocks than without a copy.
        {**AT_FORK, "live_blocks": 1, "payload": 4, "slack": 0},
    ],
)
def test_no_more_than_the_declared_copy_is_taken_away(wrong: Values) -> None:
    assert first_disagreement(written("lazy", LAZY), written("eager", wrong, copies_at_fork=True)) is not None


def test_a_row_that_only_one_has_is_a_disagreement() -> None:
    found = first_disagreement(written("a", LAZY, LAZY), written("b", LAZY, LAZY, steps=[0, 2]))

    assert found is not None
    assert (found.step, found.columns) == (1, ("rows",))
    assert str(found).endswith("b: no row")


def test_what_cannot_be_seen_agrees_with_nothing() -> None:
    unseen = {**LAZY, "slack": ABSENT}
    found = first_disagreement(written("a", unseen), written("b", unseen))

    assert found is not None
    assert found.columns == ("slack",)
    assert "slack not seen" in str(found)


def test_pools_that_cannot_be_compared_are_refused() -> None:
    with pytest.raises(ValueError, match="blocks of 4 tokens, b of 8: open both with the same"):
        first_disagreement(written("a", LAZY), written("b", LAZY, block_size=8))
    # Two sequences that come to 9 tokens, 3 blocks each, in a pool of 5: one gives way. One of 8 holds both.
    small, large = (played("reference", GIVING_WAY, num_blocks=count) for count in (5, 8))
    assert small.pool.column("preempted").any()
    with pytest.raises(ValueError, match="5 usable blocks, reference 8, and they do not suffice"):
        first_disagreement(small, large)
    assert first_disagreement(small, played("reference", GIVING_WAY, num_blocks=6, null_blocks=1)) is None
