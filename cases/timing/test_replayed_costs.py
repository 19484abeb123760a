"""What ships after whole clocked replays, on cost models that are fixed: no kernel is measured.

All requests of a burst come at once and have one shape. Step 1 takes the prompts of all that find room; then
a step gives each of them a token, until they end together and those that waited come in. So every duration
is a sum of a few products of whole numbers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsuite.cache.layout import model_layout
from kvsuite.replay.batch import SchedulerConfig
from kvsuite.sweep.cells import REFERENCE, Cell
from kvsuite.sweep.clock import StepCosts
from kvsuite.sweep.costs import StatedCosts
from kvsuite.sweep.knee import MIN_SIZES, decide
from kvsuite.sweep.measure import Measured, clock_cell, measure
from kvsuite.sweep.slo import Slo
from kvsuite.sweep.traces import TraceRef
from kvsuite.trace.model import TraceSource
from kvsuite.trace.rows import Row, trace_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvsuite.cache.layout import Layout
    from kvsuite.sweep.knee import Decision
    from kvsuite.trace.model import Trace

    Outcome = tuple[Decision, dict[str, Measured]]

LAYOUT = model_layout("tiny")
"""128 bytes a token: 2 layers x keys and values x 2 heads x 8 x 2 bytes."""
DEEP = LAYOUT.with_(num_layers=32)
"""2,048 bytes a token, so that tables weigh little."""


def trace(requests: int, *, prompt: int, output: int, late: int = 0) -> Trace:
    """Return a burst, and ``late`` more requests of the same shape that come together after 10 s."""
    rows = [
        Row(timestamp=0 if k < requests else 10_000, input_length=prompt, output_length=output)
        for k in range(requests + late)
    ]
    return trace_of(rows, TraceSource("invented", "burst"), block_size=0)


def cell(
    served: Trace, block_size: int, pool_bytes: int, *, max_sequences: int, layout: Layout = DEEP
) -> tuple[str, Cell]:
    """Return an option and what it is called."""
    option = Cell(
        trace=TraceRef.of(served),
        engine=REFERENCE,
        block_size=block_size,
        pool_bytes=pool_bytes,
        layout=layout,
        scheduler=SchedulerConfig(max_sequences=max_sequences, max_step_tokens=4096),
        prefix_cache=False,
    )
    return option.option, option


def outcome(cells: list[tuple[str, Cell]], costs: StepCosts, slo: Slo, *, least: int = MIN_SIZES) -> Outcome:
    """Return what the knee makes of clocked replays, and these by the name of their option."""
    sizes = [option.block_size for _, option in cells]
    source = StatedCosts(device="stated", kernel="stated", blocks=dict.fromkeys(sizes, costs))
    options = measure(cells, cells[0][1].trace.open(), source, slo, clock_cell).options
    decision = decide([measured.option() for measured in options], least=least)
    return decision, {measured.name: measured for measured in options}


def qualified(options: dict[str, Measured]) -> list[int]:
    """Return the qualified tokens of each option; without a spread of costs all repeats are alike."""
    found = [measured.option().qualified_tokens for measured in options.values()]
    assert all(len(set(repeats)) == 1 for repeats in found)
    return [repeats[0] for repeats in found]


def ruled(decision: Decision) -> list[tuple[str | None, str | None]]:
    """Return verdict and cause of each option, in their order."""
    return [(ruling.verdict, ruling.cause) for ruling in decision.rulings]


def test_a_larger_pool_with_fewer_qualified_tokens_does_not_ship(summary_line: Callable[[str], None]) -> None:
    """32 requests of 33 and 15 tokens, 3 blocks of 16 each; pools for 16 of them and for 32; 4 more at 10 s.

    10 ms a step and 2 ms a sequence: 42 ms a token with 16 residents, 74 with 32, and the budget is 50. In
    the small pool the second wave begins after a step of prompts and 15 of tokens, and has its first token
    at 640 + 10 + 42 = 692 ms of 700. So all its 36 x 15 tokens qualify. In the larger one only those of the
    four that come late do, at 18 ms a token.
    """
    costs, slo = StepCosts(base_us=10_000, sequence_us=2_000), Slo(ttft_us=700_000, itl_us=50_000)
    served = trace(32, prompt=33, output=15, late=4)
    blocks_bytes = 16 * DEEP.bytes_per_token
    tables_bytes = 64 * 3 * 4
    cells = [
        (name, cell(served, 16, blocks * blocks_bytes + tables_bytes, max_sequences=64)[1])
        for name, blocks in (("larger", 96), ("smaller", 48))
    ]
    decision, options = outcome(cells, costs, slo, least=2)
    summaries = [measured.summary for measured in options.values() if measured.summary is not None]
    assert [summary.peak("running") for summary in summaries] == [32, 16]
    assert [summary.total("preempted") for summary in summaries] == [0, 0]
    assert [round(option.steady[0].ttft[-1].value_us) for option in options.values()] == [84_000, 692_000]
    assert qualified(options) == [4 * 15, 36 * 15]
    assert decision.shipped is not None
    assert decision.shipped.name == "smaller"
    assert ruled(decision) == [("inspect", "latency"), ("ship", "latency")]
    summary_line("PASS: a larger pool with fewer qualified tokens does not ship, in whole replays")


def test_an_slo_that_small_blocks_cannot_meet_moves_the_verdict(summary_line: Callable[[str], None]) -> None:
    """64 requests of 5 and 4 tokens, all resident at every size, charged 1 ms a step and 10 us a table entry.

    At its last step of 9 tokens a sequence has 9, 5, 3, 2 and 1 entries in blocks of 1, 2, 4, 8 and 16: 6.76,
    4.2, 2.92, 2.28 and 1.64 ms. With 4 ms between tokens blocks of 1 and 2 qualify none. At 5 to 9 tokens
    blocks of 1, 2, 4, 8 and 16 leave 0, 3, 9, 13 and 45 slots of a sequence empty in 5 steps. So block 4
    ships: in a pool of 1,040 slots block 8 leaves 64 x 4 / 5 more, 4.9 %. With a budget of 7 ms all qualify,
    and memory alone would take block 1.
    """
    costs = StepCosts(base_us=1_000, table_entry_us=10)
    served = trace(64, prompt=5, output=4)
    pool_bytes = 1040 * DEEP.bytes_per_token
    cells = [cell(served, size, pool_bytes, max_sequences=64) for size in (1, 2, 4, 8, 16)]
    decision, options = outcome(cells, costs, Slo(ttft_us=10**6, itl_us=4_000))
    gaps_us = [round(option.steady[0].itl[-1].value_us) for option in options.values()]
    assert gaps_us == [6_760, 4_200, 2_920, 2_280, 1_640]
    assert qualified(options) == [0, 0, 256, 256, 256]
    assert decision.shipped is not None
    assert decision.shipped.block_size == 4
    assert ruled(decision) == [
        ("inspect", "latency"),
        ("inspect", "latency"),
        ("ship", "slack"),
        ("reject", "slack"),
        ("reject", "slack"),
    ]
    lax, options = outcome(cells, costs, Slo(ttft_us=10**6, itl_us=7_000))
    assert qualified(options) == [256] * 5
    assert (lax.result, lax.shipped) == ("not decided by latency", None)
    assert lax.favoured is not None
    assert lax.favoured.block_size == 1
    summary_line("PASS: an SLO that small blocks cannot meet moves the verdict to an interior size")


def test_a_pool_so_small_that_slack_decides_moves_it_to_smaller_blocks(
    summary_line: Callable[[str], None],
) -> None:
    """8 requests of 17 and 3 tokens, charged 1 ms a step and 10 us a table entry; 4 ms to the first token.

    They take 20 slots each in blocks of 1, 2 and 4, 24 in blocks of 8 and 32 in blocks of 16. Of 172 slots
    tables take less than one, so that all run at once in the first three, 7 in blocks of 8 and 5 in blocks of
    16. Who waits for a step of prompts and three of tokens, each of 1.21 ms or 1.1, is late. Block 1 has 152
    entries or more, 2.52 ms against 2 ms between tokens. Blocks of 2 and 4 leave 8, 0, 8, 0 and 24, 16, 8, 0
    slots empty, and 8 more on average are 4.7 %. Of 20,000 slots all get theirs, and block 16 ships: it
    leaves 108 empty on average, 0.52 % more than block 2.
    """
    costs, slo = StepCosts(base_us=1_000, table_entry_us=10), Slo(ttft_us=4_000, itl_us=2_000)
    served = trace(8, prompt=17, output=3)

    def shipped(slots: int) -> tuple[int, list[int], Decision]:
        pool_bytes = slots * DEEP.bytes_per_token
        cells = [cell(served, size, pool_bytes, max_sequences=8) for size in (1, 2, 4, 8, 16)]
        decision, options = outcome(cells, costs, slo)
        assert decision.shipped is not None
        return decision.shipped.block_size, qualified(options), decision

    size, tokens, _ = shipped(20_000)
    assert (size, tokens) == (16, [0, 24, 24, 24, 24])
    size, tokens, decision = shipped(172)
    assert (size, tokens) == (2, [0, 24, 24, 21, 15])
    assert [option.block_size for option in decision.tied] == [2, 4]
    assert ruled(decision) == [
        ("inspect", "latency"),
        ("ship", "slack"),
        ("reject", "slack"),
        ("reject", "slack"),
        ("reject", "slack"),
    ]
    summary_line("PASS: a pool so small that slack decides moves the verdict to smaller blocks")


def test_table_bytes_charged_to_the_pool_reject_block_1(summary_line: Callable[[str], None]) -> None:
    """16 requests of 95 and 5 tokens beside tables of 256 rows, 1 ms a step and 100 us a sequence.

    A pool of 2,000 slots of 128 bytes less 256 x 100 x 4 bytes of tables is 1,200 slots at block 1. So 12 run
    at once, and the others have their first token after 12 ms and two steps of their own: 14.4 ms of 6.
    At block 2 the tables take half as much, and 1,600 slots hold all 16. Block 4 leaves 0.55 % more of them
    empty and ships; block 8 would leave 2.7 % more. Where the pool is larger by the tables of block 1, all 16
    run there too.
    """
    costs, slo = StepCosts(base_us=1_000, sequence_us=100), Slo(ttft_us=6_000, itl_us=10_000)
    served = trace(16, prompt=95, output=5)
    tables_bytes = 256 * 100 * 4
    pool_bytes = 2_000 * LAYOUT.bytes_per_token

    def on(pool_bytes: int) -> Outcome:
        sizes = (1, 2, 4, 8, 16)
        cells = [cell(served, size, pool_bytes, max_sequences=256, layout=LAYOUT) for size in sizes]
        return outcome(cells, costs, slo)

    decision, options = on(pool_bytes)
    assert [option.pool_blocks for option in options.values()][:2] == [1_200, 800]
    assert options["block 1"].table_bytes == tables_bytes
    assert round(options["block 1"].steady[0].ttft[-1].value_us) == 14_400
    assert qualified(options) == [60, 80, 80, 80, 80]
    assert decision.shipped is not None
    assert decision.shipped.block_size == 4
    assert ruled(decision)[:2] == [("reject", "table bytes"), ("reject", "table bytes")]
    roomy, options = on(pool_bytes + tables_bytes)
    assert options["block 1"].pool_blocks == 2_000
    assert (roomy.result, qualified(options)) == ("not decided by latency", [80] * 5)
    summary_line("PASS: table bytes charged to the pool reject block 1")
