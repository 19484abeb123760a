"""Whole ledgers worked out on paper; each expected number follows from the lifecycle in the docstring."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsuite.replay.batch import Ending, SchedulerConfig
from kvsuite.replay.driver import replay
from kvsuite.trace.model import ForkKind

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvsuite.engine.contract import Engine
    from kvsuite.replay.driver import Replay
    from kvsuite.trace.model import Trace

    MakeTrace = Callable[..., Trace]
    MakeEngine = Callable[..., Engine]


def column(done: Replay, name: str) -> list[int]:
    rows: list[int] = done.timeline.pools[0].column(name).tolist()
    return rows


def test_one_request_from_prompt_to_end(make_trace: MakeTrace, make_engine: MakeEngine) -> None:
    """5 prompt tokens and 3 answers in blocks of 4, 16 blocks: lengths 5, 6, 7, 8 in two blocks."""
    done = replay(make_trace({"prompt_tokens": 5, "output_tokens": 3}), make_engine())
    assert done.violations == ()
    assert done.timeline.steps.tolist() == [0, 1, 2, 3]
    assert column(done, "payload") == [5, 6, 7, 8]
    assert column(done, "slack") == [3, 2, 1, 0]
    assert column(done, "free") == [56, 56, 56, 56]
    assert column(done, "allocated") == [2, 0, 0, 0]
    assert column(done, "full_blocks") == [1, 1, 1, 2]
    assert column(done, "written") == [5, 1, 1, 1]
    assert column(done, "finished") == [0, 0, 0, 1]
    assert column(done, "largest_admissible") == [56, 56, 56, 56]
    assert done.final_lengths.tolist() == [8]
    outcome = done.outcomes[0]
    assert (outcome.admitted_step, outcome.first_token_step, outcome.ended_step) == (0, 1, 3)


def test_every_token_is_written_once_and_read_again(make_trace: MakeTrace, make_engine: MakeEngine) -> None:
    """8 tokens written; 5 + 1 + 1 read one step later, 8 before the release, and a sample each step.

    The samples start at turn * 256 mod written: 256 % 5 = 1 (reads 4), 512 % 6 = 2 (4), 768 % 7 = 5 (2),
    1024 % 8 = 0 (8).
    """
    done = replay(make_trace({"prompt_tokens": 5, "output_tokens": 3}), make_engine())
    assert done.content.tokens_written == 8
    assert done.content.tokens_read == (5 + 1 + 1) + 8 + (4 + 4 + 2 + 8)
    assert done.content.mismatches == 0


def test_a_chunked_prompt_takes_blocks_as_it_is_computed(
    make_trace: MakeTrace, make_engine: MakeEngine
) -> None:
    """10 tokens, 4 a step: lengths 4, 8, 10, then one answer."""
    config = SchedulerConfig(max_sequences=4, max_step_tokens=4)
    done = replay(make_trace({"prompt_tokens": 10, "output_tokens": 1}), make_engine(), scheduler=config)
    assert column(done, "payload") == [4, 8, 10, 11]
    assert column(done, "allocated") == [1, 1, 1, 0]


def test_a_fork_shares_and_the_first_writer_copies(make_trace: MakeTrace, make_engine: MakeEngine) -> None:
    """Parent and child share 5 tokens (2 blocks of 4); both answer once.

    Step 0: 5 tokens. Step 1: the parent writes first, into a shared tail: it copies 1 token to a block of its
    own; the child is then the only holder of the old tail and writes in place. Blocks 0 (shared), 1, 2.
    """
    trace = make_trace(
        {"prompt_tokens": 5, "output_tokens": 1},
        {"prompt_tokens": 5, "output_tokens": 1, "parent": 0, "fork_kind": ForkKind.SAMPLE, "fork_at": 5},
    )
    done = replay(trace, make_engine())
    assert done.violations == ()
    assert column(done, "payload") == [5, 4 + 2 + 2]
    assert column(done, "logical") == [5, 12]
    assert column(done, "sharing_saved") == [0, 4]
    assert column(done, "slack") == [3, 2 + 2]
    assert column(done, "shared_blocks") == [0, 1]
    assert column(done, "private_transitions") == [0, 1]
    assert column(done, "copied") == [0, 1]
    assert column(done, "forked") == [1, 0]
    (family,) = done.fork_families
    assert (family.children, family.copies, family.copied_tokens) == (1, 1, 1)
    assert family.net_tokens == 4 - 1


def test_a_burst_inside_the_first_block_ends_below_zero(
    make_trace: MakeTrace, make_engine: MakeEngine
) -> None:
    """3 children share 3 tokens of a block of 4 and all write: 3 copies of 3 tokens, nothing stays shared."""
    child = {"prompt_tokens": 3, "output_tokens": 1, "parent": 0, "fork_kind": ForkKind.SAMPLE, "fork_at": 3}
    done = replay(make_trace({"prompt_tokens": 3, "output_tokens": 1}, child, child, child), make_engine())
    (family,) = done.fork_families
    assert (family.children, family.copies, family.copied_tokens) == (3, 3, 9)
    assert family.net_tokens == -9
    tiny_bytes_per_token = 2 * 2 * 2 * 8 * 2  # layers x (k, v) x heads x dim x bfloat16
    assert family.net_bytes == -9 * tiny_bytes_per_token


def test_the_youngest_gives_way_and_computes_again(make_trace: MakeTrace, make_engine: MakeEngine) -> None:
    """Two requests of 8 + 4 in 5 blocks of 4: each wants a third block after its prompt, one is there.

    step 1  the older takes it, the younger is refused and gives way itself
    step 2  its two blocks are still there: it comes back, 4 tokens found, 4 computed again (7 may be found)
    step 3  it wants its third block again and gives way again
    step 4  it comes back again; the older has its 12 tokens and ends
    step 5  it goes on to 9, 10, 11, 12
    """
    row = {"prompt_tokens": 8, "output_tokens": 4}
    done = replay(make_trace(row, row), make_engine(num_blocks=5))
    assert done.violations == ()
    assert column(done, "preempted") == [0, 1, 0, 1, 0, 0, 0, 0, 0]
    assert column(done, "refused_growths") == [0, 1, 0, 1, 0, 0, 0, 0, 0]
    assert column(done, "running") == [2, 1, 2, 1, 2, 1, 1, 1, 1]
    assert column(done, "hit") == [0] * 9
    assert column(done, "resumed_hit") == [0, 0, 4, 0, 4, 0, 0, 0, 0]
    assert column(done, "recomputed") == [0, 0, 4, 0, 4, 0, 0, 0, 0]
    assert column(done, "written") == [16, 1, 1 + 4, 1, 1 + 4, 1, 1, 1, 1]
    assert [outcome.preemptions for outcome in done.outcomes] == [0, 2]


def test_cancellation_before_the_first_token_and_after_two(
    make_trace: MakeTrace, make_engine: MakeEngine
) -> None:
    """k = 0 leaves one step after it came; k = 2 one step after its second token (steps 1 and 2)."""
    trace = make_trace(
        {"prompt_tokens": 3, "output_tokens": 9, "cancel_after": 0},
        {"prompt_tokens": 3, "output_tokens": 9, "cancel_after": 2},
    )
    done = replay(trace, make_engine())
    assert [outcome.ending for outcome in done.outcomes] == [Ending.CANCELLED] * 2
    assert [outcome.ended_step for outcome in done.outcomes] == [1, 3]
    assert [outcome.generated_tokens for outcome in done.outcomes] == [0, 2]


def test_cancellation_of_a_request_that_still_waits(make_trace: MakeTrace, make_engine: MakeEngine) -> None:
    """One seat; the second request is cancelled at 120 ms, before it ever ran."""
    trace = make_trace(
        {"prompt_tokens": 3, "output_tokens": 9},
        {"prompt_tokens": 3, "output_tokens": 9, "cancel_at_us": 120_000},
    )
    done = replay(trace, make_engine(), scheduler=SchedulerConfig(max_sequences=1, max_step_tokens=8))
    assert done.outcomes[1].ending is Ending.CANCELLED
    assert done.outcomes[1].admitted_step is None
    assert done.outcomes[1].ended_step == 3  # the first step at or after 120 ms, 50 ms a step


def test_what_can_never_fit_is_refused_at_arrival(make_trace: MakeTrace, make_engine: MakeEngine) -> None:
    """65 tokens against 16 blocks of 4."""
    done = replay(
        make_trace({"prompt_tokens": 60, "output_tokens": 5}, {"prompt_tokens": 60, "output_tokens": 4}),
        make_engine(),
    )
    assert [outcome.ending for outcome in done.outcomes] == [Ending.REJECTED, Ending.FINISHED]


def test_children_of_a_parent_that_never_came_so_far_are_orphaned(
    make_trace: MakeTrace, make_engine: MakeEngine
) -> None:
    trace = make_trace(
        {"prompt_tokens": 3, "output_tokens": 9, "cancel_after": 1},
        {"prompt_tokens": 3, "output_tokens": 9, "parent": 0, "fork_kind": ForkKind.BEAM, "fork_at": 8},
    )
    done = replay(trace, make_engine())
    assert done.outcomes[1].ending is Ending.ORPHANED


def test_idle_time_has_no_rows(make_trace: MakeTrace, make_engine: MakeEngine) -> None:
    trace = make_trace({"prompt_tokens": 3}, {"prompt_tokens": 3, "arrival_us": 1_000_000})
    assert replay(trace, make_engine()).timeline.steps.tolist() == [0, 20]


def test_a_shared_prompt_is_found_and_counted(make_trace: MakeTrace, make_engine: MakeEngine) -> None:
    """8 equal prompt tokens, the second request a step later: 4 hit tokens (one token must be computed)."""
    trace = make_trace(
        {"prompt_tokens": 8, "output_tokens": 6, "nodes": [0, 1]},
        {"prompt_tokens": 8, "output_tokens": 2, "nodes": [0, 1], "arrival_us": 50_000},
        block_size=4,
    )
    done = replay(trace, make_engine())
    assert done.violations == ()
    assert column(done, "hit")[:2] == [0, 4]
    assert column(done, "shared_blocks")[1] == 1
    assert column(done, "payload")[1] == 9 + 8 - 4
