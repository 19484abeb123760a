"""From cells to a decision, on bursts whose schedule can be worked out and on costs that are stated."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from kvsuite.errors import ConfigError
from kvsuite.record.decision_rows import BurstRow, LifecycleRow
from kvsuite.sweep.charge import blocks_left, charged, table_bytes
from kvsuite.sweep.clock import StepCosts
from kvsuite.sweep.decision import trend
from kvsuite.sweep.load import Load
from kvsuite.sweep.recipe import changes, compare
from kvsuite.sweep.slo import Slo
from kvsuite.sweep.trial import Trial
from tests.sweep.burst_clock import burst
from tests.sweep.decisions import DEEP, LAYOUT, SIZES, judged, measured, plan, stated


def test_tables_by_hand() -> None:
    """16 rows of 100 tokens: at b = 1 16 x 100 x 4 bytes, at b = 16 16 x 7 x 4, twice that in two groups."""
    assert table_bytes(1, max_sequences=16, max_model_tokens=100) == 6400
    assert table_bytes(16, max_sequences=16, max_model_tokens=100) == 448
    assert table_bytes(16, max_sequences=16, max_model_tokens=100, groups=2, copies=3) == 6 * 448


def test_blocks_left_when_the_tables_are_paid() -> None:
    assert LAYOUT.bytes_per_token == 128
    assert blocks_left(LAYOUT, 128 * 100, 1, 6400) == 50
    assert blocks_left(LAYOUT, 128 * 100, 16, 448) == 6
    with pytest.raises(ConfigError, match="leave no block of 16 tokens"):
        blocks_left(LAYOUT, 2048 + 447, 16, 448)


def test_a_cell_is_charged_and_a_control_is_not() -> None:
    trace = burst(4, prompt=90, output=10)
    (one, *_, control) = plan(trace, 400).cells()
    assert charged(one, trace) == (replace(one, pool_bytes=128 * 400 - 6400), 6400)
    assert charged(control, trace) == (control, 0)


FLAT = StepCosts(base_us=1000, sequence_us=100)


def test_table_bytes_charged_to_the_pool_reject_block_1() -> None:
    """256 rows as wide as 100 tokens, steps that cost the same at every size, 16 requests of 100 tokens.

    A pool of 2,000 slots (256,000 bytes) less 102,400 bytes of tables at block 1 leaves 1,200 slots: 12
    requests at once, and 51,200 at block 2 leave 1,600: 16. All tables below leave more, and all 16 run.
    First tokens of the four that wait come when the first twelve are done, after the budget: five tokens at
    1,000 + 12 x 100 us are 11 ms.
    """
    trace = burst(16, prompt=95, output=5)
    swept = plan(trace, 2000, max_sequences=256)
    slo = Slo(ttft_us=6000, itl_us=10_000)
    done = judged(swept, stated(FLAT), slo)
    by_name = {ruling.option.name: ruling for ruling in done.decision.rulings}
    assert [option.pool_blocks for option in done.measurement.options[:2]] == [1200, 800]
    assert by_name["block 1"].option.qualified_tokens == (60,) * 3
    assert by_name["block 2"].option.qualified_tokens == (80,) * 3
    assert by_name["block 1"].option.table_share == pytest.approx(0.4)
    assert (by_name["block 1"].verdict, by_name["block 1"].cause) == ("reject", "table bytes")
    assert done.decision.result == "ship"
    assert done.decision.shipped is not None
    assert done.decision.shipped.block_size > 1


def test_a_pool_so_small_that_slack_decides_moves_it_to_smaller_blocks() -> None:
    """Requests of 17 to 20 tokens: in blocks of 1, 2 and 4 they take 20 slots, of 8 24, and of 16 32.

    172 slots less tables are 162 of 1, 83 blocks of 2, 42 of 4, 21 of 8 and 10 of 16. So all 8 requests run
    at once in the first three, 7 in blocks of 8 and 5 in blocks of 16; who waits is late by three tokens.
    """
    trace = burst(8, prompt=17, output=3)
    costs = stated(StepCosts(base_us=1000, sequence_us=10, table_entry_us=1.0))
    slo = Slo(ttft_us=3500, itl_us=10_000)
    roomy = judged(plan(trace, 1000), costs, slo)
    assert roomy.decision.result == "not decided by latency"
    tight = judged(plan(trace, 172), costs, slo)
    options = {ruling.option.block_size: ruling.option for ruling in tight.decision.rulings[:5]}
    assert {size: option.qualified_tokens[0] for size, option in options.items()} == {
        1: 24,
        2: 24,
        4: 24,
        8: 21,
        16: 15,
    }
    assert tight.decision.shipped in (options[1], options[2], options[4])
    assert tight.decision.ruling("block 16").cause == "slack"
    assert tight.decision.ruling("block 16").verdict == "reject"


def test_small_blocks_that_are_charged_by_entry_win_memory_and_lose_latency() -> None:
    """8 sequences of 95 to 100 tokens in 4,000 slots, 1 ms a step and 10 us an entry, 4 ms between tokens.

    Blocks of 1 and 2 take 8.6 ms and 4.8, of 4, 8 and 16 3 ms and less. At 95 to 100 tokens blocks of 4
    leave 1, 0, 3, 2, 1, 0 slots of a sequence empty, of 8 1, 0, 7, 6, 5, 4 and of 16 1, 0, 15, 14, 13, 12: of
    the pool 0.23 %, 0.77 % and 1.83 %. So 16 is more than 1 % above 4, and 8 ships, an interior size.
    """
    trace = burst(8, prompt=95, output=5)
    costs = stated(StepCosts(base_us=1000, table_entry_us=10.0))
    done = judged(plan(trace, 4000, layout=DEEP), costs, Slo(ttft_us=10**6, itl_us=4000))
    assert done.decision.ruling("block 1").verdict == "inspect"
    assert done.decision.ruling("block 1").cause == "latency"
    assert done.decision.ruling("block 16").verdict == "reject"
    assert done.decision.ruling("block 16").cause == "slack"
    assert done.decision.shipped is not None
    assert done.decision.shipped.block_size == 8
    shares = {ruling.option.block_size: ruling.option.slack_share for ruling in done.decision.rulings[:5]}
    expected = {4: 7 * 8 / 6 / 4000, 8: 23 * 8 / 6 / 4000, 16: 55 * 8 / 6 / 4000}
    assert {size: shares[size] for size in expected} == pytest.approx(
        expected, rel=0.01
    )  # tables take some slots of 4,000
    assert [option.block_size for option in done.decision.tied] == [4, 8, 16]
    line = done.line(trace="t", engine="reference")
    assert line.step_rho == 1.0
    assert line.step_slope_us is not None
    assert line.step_slope_us > 0


def test_an_unreachable_slo_ships_nothing_and_exits_with_4() -> None:
    done = judged(plan(burst(4, prompt=9, output=3), 400), stated(FLAT), Slo(1, 1))
    assert (done.decision.result, done.exit_code) == ("SLO unreachable on this device", 4)
    line = done.line(trace="t", engine="reference")
    assert line.shipped is None
    assert line.sentence.startswith(
        "SLO unreachable on this device: no block size qualifies a token under ttft="
    )


def test_a_projection_says_so_and_gates_nothing() -> None:
    source = stated(FLAT, device="another card")
    done = judged(plan(burst(4, prompt=9, output=3), 400), source, Slo(1, 1))
    assert (done.projected, done.exit_code) == (True, 0)
    assert "measured on another card, not on this processor; this gates nothing" in (
        done.line(trace="t", engine="reference").sentence
    )


def test_what_does_not_survive_is_struck_and_the_knee_found_again() -> None:
    trace = burst(8, prompt=95, output=5)
    costs = stated(StepCosts(base_us=1000, table_entry_us=10.0))
    slo = Slo(ttft_us=10**6, itl_us=2500)
    first = judged(plan(trace, 4000, layout=DEEP), costs, slo).decision.shipped
    assert first is not None
    assert first.block_size == 8
    second = judged(
        plan(trace, 4000, layout=DEEP),
        costs,
        slo,
        trials=lambda option: tried(unfit="r3 starves" if option.name == first.name else None),
    )
    assert second.decision.shipped is not None
    assert second.decision.shipped.block_size == 16
    row = next(row for row in second.line(trace="t", engine="e").rows if row.option == first.name)
    assert (row.verdict, row.cause, row.unfit) == ("reject", "refusal", "r3 starves")


def tried(*, unfit: str | None = None, unshared_tokens: tuple[int, ...] = ()) -> Trial:
    """Return a trial in which 7 samples were borne, and sharing went where tokens without it are given."""
    lifecycle = LifecycleRow(
        requests=10, forked=2, denied=0, left_at_once=3, preempted=0, tokens_read=99, broken=unfit
    )
    burst = BurstRow(largest=7, bound="blocks", spare_blocks=7, running=4, copied_tokens=21)
    return Trial(
        lifecycle=lifecycle,
        burst=burst,
        sharing=not unshared_tokens,
        unshared_tokens=unshared_tokens,
        unfit=unfit,
    )


def test_a_burst_beyond_what_is_borne_ships_with_sharing_off_and_the_decision_says_so() -> None:
    trace = burst(8, prompt=95, output=5)
    asked = (
        plan(trace, 4000, layout=DEEP),
        stated(StepCosts(base_us=1000, table_entry_us=10.0)),
        Slo(ttft_us=10**6, itl_us=2500),
    )
    shared = judged(*asked, trials=lambda _: tried())
    line = shared.line(trace="t", engine="e")
    assert (line.shipped, line.with_sharing) == ("block 8", True)
    assert line.sentence.startswith("Ship block 8: 40 qualified tokens under ")
    assert line.sentence.endswith("At its fullest step it bears 7 samples that diverge at once.")

    alone = judged(*asked, trials=lambda _: tried(unshared_tokens=(30, 31, 32)))
    other = alone.line(trace="t", engine="e")
    assert (other.shipped, other.with_sharing) == ("block 8", False)
    assert other.sentence.startswith(
        "Ship block 8 with sharing off: 31 qualified tokens so. With sharing, 40 qualified tokens under "
    )
    assert "bears 7 samples that diverge at once, where 0 are declared" in other.sentence
    row = next(row for row in other.rows if row.option == "block 8")
    assert row.burst is not None
    assert (row.burst.largest, row.burst.bound, row.burst.copied_tokens) == (7, "blocks", 21)
    assert row.lifecycle is not None
    assert (row.lifecycle.left_at_once, row.lifecycle.broken) == (3, None)

    found = compare(shared.stored(line), alone.stored(other))
    assert found.changed
    assert found.said == "shipped size changed: from block 8 to block 8 with sharing off"


def test_a_declared_burst_is_part_of_the_recipe() -> None:
    done = judged(plan(burst(4, prompt=9, output=3), 400), stated(FLAT), Slo(10**6, 10**6))
    declared = replace(done.recipe, declared_burst=32).flat()
    assert "declared_burst" not in done.recipe.flat()
    assert changes(done.recipe.flat(), declared) == ["declared_burst changed from nothing to 32"]


def test_refused_options_and_controls_are_rows_with_their_reason() -> None:
    """Blocks of 64 tokens in a pool of 60 slots."""
    swept = plan(burst(4, prompt=9, output=3), 60, sizes=(*SIZES, 64))
    rows = judged(swept, stated(FLAT), Slo(10**6, 10**6)).line(trace="t", engine="reference").rows
    assert [row.option for row in rows][-2:] == ["block 64", "contiguous-max"]
    assert rows[-2].refused is not None
    assert "leave no block of 64 tokens" in rows[-2].refused
    assert (rows[-2].verdict, rows[-2].cause) == ("reject", "refusal")
    assert rows[-1].unjudged == (
        'no costs of a contiguous control are stated: give them as "control" beside "blocks"'
    )
    assert rows[-1].signal == f"not judged: {rows[-1].unjudged}"
    assert (rows[-1].verdict, rows[-1].control) == (None, True)


def test_repeats_are_paired_draws_and_the_first_is_the_median() -> None:
    source = stated(FLAT, spread=0.1)
    assert source.draw(8, 0) == FLAT
    assert source.draw(8, 1) == source.draw(8, 1) != source.draw(8, 2) != FLAT
    assert source.draw(8, 1) != source.draw(16, 1)
    factors = [source.draw(8, k).base_us / 1000 for k in range(1, 2000)]
    assert np.std(np.log(factors)) == pytest.approx(0.1, rel=0.05)
    runs = [measured(plan(burst(4, prompt=9, output=3), 400), source, Slo(10**6, 1400)) for _ in "ab"]
    tokens = [[option.option().qualified_tokens for option in run.options] for run in runs]
    assert tokens[0] == tokens[1]
    assert len({counts for counts in tokens[0] if counts}) > 1


def test_phases_part_at_the_same_moment_for_every_option() -> None:
    """A burst: its twentieth part arrives with the rest, so that nothing is cold."""
    run = measured(plan(burst(8, prompt=15, output=1), 400), stated(FLAT), Slo(10**6, 10**6))
    assert run.cold_until_us == 0
    assert [option.cold[0].requests for option in run.options if option.ran] == [0] * 5
    assert [option.steady[0].requests for option in run.options if option.ran] == [8] * 5


def test_step_times_are_compared_at_one_load() -> None:
    """10 sequences of 100 tokens through blocks of 16: 7 entries each, 10 / 16 blocks a step."""
    (_, _, _, _, sixteen, control) = plan(burst(1, prompt=9, output=3), 100).cells()
    costs = StepCosts(
        base_us=1, sequence_us=10, context_token_us=2, prefill_token_us=9, table_entry_us=3, block_us=16
    )
    load = Load(sequences=10, context_tokens=100)
    assert load.table_depth(sixteen) == 7
    assert load.step_us(sixteen, costs) == pytest.approx(1 + 100 + 2000 + 210 + 10)
    assert load.table_depth(control) == 0
    assert load.step_us(control, replace(costs, block_us=0)) == pytest.approx(1 + 100 + 2000)


def test_the_trend_of_step_time_over_depth() -> None:
    assert trend([1, 2, 4], [10, 12, 16]) == pytest.approx((2.0, 1.0))
    assert trend([4, 2, 1], [16, 12, 10]) == pytest.approx((2.0, 1.0))
    assert trend([1, 2, 3, 4], [8, 1, 1, 0])[1] == pytest.approx(-0.9486832980)
    assert trend([1, 2], [5, 5]) == (0.0, None)
    assert trend([3, 3], [5, 6]) == (None, None)
