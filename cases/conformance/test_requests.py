"""Engines that schedule and sample by themselves, judged on what they let us see.

Every replay here is held against the laws of `kvsuite.ledger.request_laws`: blocks in use lie between what
was computed and what anybody can hold, numbers close against the pool, answers have the length asked for,
nobody waits for ever, and nothing is held when all have ended. The cases add what follows from the lengths
alone. Content is not checked: the slots are the engine's own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from kvsuite.engine.contract import Capability
from kvsuite.replay.batch import Ending
from kvsuite.trace.model import TraceSource
from kvsuite.trace.rows import Row, trace_of
from kvsuite.trace.synthetic import synthetic

if TYPE_CHECKING:
    from kvsuite.plugin.request_replays import RequestReplayer
    from kvsuite.replay.requests.driver import RequestReplay
    from kvsuite.trace.model import Trace

pytestmark = pytest.mark.requires(Capability.REQUEST_DRIVEN)


def asked(*rows: Row, block_size: int) -> Trace:
    """Return the trace of a few requests; times are milliseconds, a step is 50."""
    return trace_of(rows, TraceSource("case", "requests"), block_size=block_size)


def used(done: RequestReplay) -> list[int]:
    return [int(blocks) for blocks in done.timeline.pools[0].column("live_blocks")]


def endings(done: RequestReplay) -> list[Ending | None]:
    return [outcome.ending for outcome in done.outcomes]


def test_blocks_in_use_follow_from_the_lengths(kv_requests: RequestReplayer) -> None:
    """Prompts of 2, b + 2 and 3b + 2 tokens with b - 4 more stay within 1 + 2 + 4 blocks, all along."""
    b = kv_requests.block_size
    rows = [Row(timestamp=0, input_length=n, output_length=b - 4) for n in (2, b + 2, 3 * b + 2)]
    done = kv_requests(asked(*rows, block_size=b), num_blocks=16)
    assert endings(done) == [Ending.FINISHED] * 3
    assert max(used(done)) == 1 + 2 + 4
    assert used(done).count(7) >= b - 6, f"7 blocks are held from the prompts to the end, found {used(done)}"


def test_a_block_is_taken_when_its_first_token_is(kv_requests: RequestReplayer) -> None:
    """A prompt of b - 1 tokens with 3 more: its b tokens fill one block, and the next one needs a second."""
    b = kv_requests.block_size
    done = kv_requests(
        asked(Row(timestamp=0, input_length=b - 1, output_length=4), block_size=b), num_blocks=16
    )
    first = used(done).index(1)
    assert used(done)[first] == 1
    assert max(used(done)) == 2
    assert used(done).index(2) - first >= 1


@pytest.mark.parametrize("workload", ["boundary", "cancel-burst", "churn"])
@pytest.mark.parametrize("prefix_cache", [False, True], ids=["alone", "cached"])
def test_a_workload_comes_to_its_end(kv_requests: RequestReplayer, workload: str, prefix_cache: bool) -> None:
    trace = synthetic(workload)
    done = kv_requests(trace, num_blocks=2048, prefix_cache=prefix_cache)
    assert set(endings(done)) <= {Ending.FINISHED, Ending.CANCELLED}
    if workload == "cancel-burst":
        assert endings(done).count(Ending.CANCELLED) > 0
    assert done.refused == {}


@pytest.mark.parametrize("prefix_cache", [False, True], ids=["alone", "cached"])
@pytest.mark.parametrize(("workload", "pool_tokens"), [("thrash", 4096), ("churn", 2048)])
def test_a_pool_too_small_for_all_serves_all(
    kv_requests: RequestReplayer, workload: str, pool_tokens: int, prefix_cache: bool
) -> None:
    """Requests that fit one at a time and not at once: whoever gives way comes back."""
    trace = synthetic(workload)
    size = kv_requests.block_size
    num_blocks = pool_tokens // size
    final_blocks = -(-(trace.prompt_tokens + trace.output_tokens) // size)
    assert final_blocks.max() <= num_blocks < final_blocks.sum()
    done = kv_requests(trace, num_blocks=num_blocks, prefix_cache=prefix_cache)
    assert set(endings(done)) <= {Ending.FINISHED, Ending.CANCELLED}
    assert done.refused == {}
    assert max(used(done)) <= num_blocks


def test_what_exceeds_the_pool_is_refused(kv_requests: RequestReplayer) -> None:
    """A prompt of 8 blocks, to a pool of 4."""
    b = kv_requests.block_size
    row = Row(request_id="large", timestamp=0, input_length=8 * b, output_length=4)
    done = kv_requests(asked(row, block_size=b), num_blocks=4)
    assert endings(done) == [Ending.REJECTED]
    assert list(done.refused) == ["large"]


def test_what_grows_beyond_the_pool_is_refused(kv_requests: RequestReplayer) -> None:
    """A prompt of 3 blocks that asks for 2 more, in a pool of 4."""
    b = kv_requests.block_size
    row = Row(timestamp=0, input_length=3 * b, output_length=2 * b)
    done = kv_requests(asked(row, block_size=b), num_blocks=4)
    assert endings(done) == [Ending.REJECTED]


def test_what_exceeds_the_pool_takes_nobody_with_it(kv_requests: RequestReplayer) -> None:
    """The request behind one that can never fit is served: refusing it names `progress`."""
    b = kv_requests.block_size
    rows = [
        Row(timestamp=0, input_length=8 * b, output_length=4),
        Row(timestamp=0, input_length=b // 2, output_length=4),
    ]
    done = kv_requests(asked(*rows, block_size=b), num_blocks=4)
    assert endings(done) == [Ending.REJECTED, Ending.FINISHED]


def test_a_client_that_leaves_gives_its_blocks_back(kv_requests: RequestReplayer) -> None:
    """One of 5 blocks leaves at step 4; one of 2 blocks goes on, alone two steps later."""
    b = kv_requests.block_size
    rows = [
        Row(request_id="leaves", timestamp=0, input_length=4 * b + 2, output_length=b - 4, cancel_at=200),
        Row(request_id="stays", timestamp=0, input_length=b + 2, output_length=b - 4),
    ]
    done = kv_requests(asked(*rows, block_size=b), num_blocks=16)
    leaves, stays = done.outcomes
    assert (leaves.ending, stays.ending) == (Ending.CANCELLED, Ending.FINISHED)
    steps = done.timeline.steps
    assert set(np.array(used(done))[(steps > 1) & (steps < 4)]) == {7}
    assert stays.ended_step is not None
    assert stays.ended_step > 8
    assert set(np.array(used(done))[(steps > 6) & (steps < stays.ended_step)]) == {2}


@pytest.mark.requires(Capability.SAMPLES)
def test_answers_to_one_request_share_its_prompt(kv_requests: RequestReplayer) -> None:
    """3 answers to a prompt of 2b + 2 tokens: 2 full blocks once, and 3 tails, not 9 blocks."""
    b = kv_requests.block_size
    rows = [
        Row(request_id="r", timestamp=0, input_length=2 * b + 2, output_length=b - 4),
        *(
            Row(
                request_id=f"r{k}",
                timestamp=0,
                input_length=2 * b + 2,
                output_length=b - 4,
                parent="r",
                fork="sample",
                fork_at=2 * b + 2,
            )
            for k in (1, 2)
        ),
    ]
    done = kv_requests(asked(*rows, block_size=b), num_blocks=16, prefix_cache=False)
    assert endings(done) == [Ending.FINISHED]
    assert max(used(done)) == 2 + 3


@pytest.mark.requires(Capability.PREFIX_CACHE)
def test_a_prompt_seen_before_shares_its_full_blocks(kv_requests: RequestReplayer) -> None:
    """The second request brings 4 blocks that the first still holds, and takes 1: 6 in use, not 10."""
    b = kv_requests.block_size
    rows = [
        Row(timestamp=at, input_length=4 * b + 2, output_length=b - 4, hash_ids=[0, 1, 2, 3, tail])
        for at, tail in ((0, 4), (250, 5))
    ]
    trace = asked(*rows, block_size=b)
    shared = kv_requests(trace, num_blocks=16, prefix_cache=True)
    alone = kv_requests(trace, num_blocks=16, prefix_cache=False)
    assert max(used(shared)) == 4 + 2
    assert max(used(alone)) == 2 * 5


@pytest.mark.requires(Capability.PREFIX_CACHE)
def test_a_shared_prompt_in_a_full_pool_starves_nobody(kv_requests: RequestReplayer) -> None:
    """Three prompts of 2b + 8 tokens with the first block in common, b + 1 more each: each fills 4 blocks.

    They come three steps apart, so that each finds the first block in use while the pool fills up.
    """
    b = kv_requests.block_size
    rows = [
        Row(
            timestamp=150 * k,
            input_length=2 * b + 8,
            output_length=b + 1,
            hash_ids=[0, 1 + 2 * k, 2 + 2 * k],
        )
        for k in range(3)
    ]
    done = kv_requests(asked(*rows, block_size=b), num_blocks=4, prefix_cache=True)
    assert endings(done) == [Ending.FINISHED] * 3


def test_the_same_requests_take_the_same_blocks(kv_requests: RequestReplayer) -> None:
    trace = synthetic("cancel-burst")
    first, second = (kv_requests(trace, num_blocks=256, prefix_cache=False) for _ in range(2))
    assert used(first) == used(second)
    assert endings(first) == endings(second)


def test_content_is_never_said_to_be_checked(kv_requests: RequestReplayer) -> None:
    trace = asked(Row(timestamp=0, input_length=3, output_length=2), block_size=kv_requests.block_size)
    done = kv_requests(trace, num_blocks=16)
    assert done.content.mode == "none"
    assert "content" in {law.invariant for law in done.not_judged}
