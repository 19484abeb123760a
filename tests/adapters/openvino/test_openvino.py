"""OpenVINO GenAI as it really runs, against numbers worked out by hand: blocks of 32 tokens, 64 of them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from kvsuite.cache.layout import Dtype
from kvsuite.engine.contract import Capability, Release
from kvsuite.errors import ConfigError
from kvsuite.replay.requests.driver import replay_requests
from kvsuite.trace.request import RequestId
from kvsuite.trace.synthetic import synthetic
from kvsuite.trace.tokens import TokenContent, TokenRun
from tests.adapters.openvino.conftest import NEWEST, OLDER

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvsuite.engine.contract import Observation, RequestEngine

    Open = Callable[..., RequestEngine]


def submit(engine: RequestEngine, key: int, prompt: int, answer: int, answers: int = 1) -> RequestId:
    name = RequestId(f"r{key}")
    run = TokenRun(TokenContent((key,), ()), 0, prompt)
    engine.submit(name, run, max_tokens=answer, num_answers=answers)
    return name


def steps(engine: RequestEngine, count: int) -> list[Observation]:
    seen = []
    for _ in range(count):
        engine.step()
        seen.append(engine.observe())
    return seen


def used(seen: list[Observation]) -> list[int | None]:
    return [observation.counts[0].used_blocks for observation in seen]


def test_prompts_take_whole_blocks_and_answers_the_next_one(openvino: Open) -> None:
    """20, 33 and 64 tokens: 1 + 2 + 2 blocks, 7.8125 % of 64. The 65th token of the third takes one more."""
    engine = openvino()
    for key, tokens in enumerate((20, 33, 64)):
        submit(engine, key, tokens, 40)
    seen = steps(engine, 3)
    assert used(seen) == [5, 6, 6]
    assert [observation.num_running for observation in seen] == [3, 3, 3]
    assert [observation.generated[RequestId("r0")] for observation in seen] == [(1,), (2,), (3,)]
    assert [observation.running for observation in seen] == [None] * 3


@pytest.mark.parametrize(
    ("options", "dtype", "block_bytes"),
    [
        ({}, Dtype.BFLOAT16, 8192),
        ({}, Dtype.FLOAT16, 8192),
        ({"kv_precision": "u8"}, Dtype.BFLOAT16, 5632),
    ],
    ids=["bf16", "f16", "u8"],
)
def test_bytes_of_a_block_follow_from_the_precision(
    openvino: Open, options: dict[str, str], dtype: Dtype, block_bytes: int
) -> None:
    """2 layers x 2 heads x 32 tokens x 2 x 16 elements of 2 bytes; u8: (32 + 8) x 16 + 32 x (16 + 8) each."""
    engine = openvino(options=options, dtype=dtype)
    submit(engine, 0, 20, 4)
    (seen,) = steps(engine, 1)
    assert engine.spec.pools[0].block_bytes == block_bytes
    assert seen.counts[0].pool_bytes == 64 * block_bytes


def test_the_engine_counts_half_a_byte_as_a_whole_one(openvino: Open) -> None:
    """A u4 block has 2 x 2 x ((32 + 16) x 16 + 32 x (16 + 16)) halves of a byte, 3584 bytes; it says 7168."""
    engine = openvino(options={"kv_precision": "u4"})
    assert engine.spec.pools[0].block_bytes == 3584
    done = replay_requests(synthetic("boundary").head(3), engine)
    (first, *_) = done.violations
    assert {violation.invariant for violation in done.violations} == {"closure"}
    assert f"{64 * 7168} bytes, expected {64 * 3584}" in first.message


def test_answers_share_the_prompt_and_copy_its_tail(openvino: Open) -> None:
    """40 tokens, 3 answers: 2 blocks; then 1 shared and 3 tails; the 65th token takes one more each.

    The 65th is computed in the step after 25 tokens were sampled, the 26th.
    """
    engine = openvino()
    name = submit(engine, 0, 40, 40, answers=3)
    seen = steps(engine, 41)
    assert used(seen) == [2, *[4] * 24, *[7] * 15, 0]
    assert all(name not in observation.generated for observation in seen[:39])
    assert seen[39].generated[name] == (40, 40, 40)
    assert dict(seen[39].finished) == {name: Release.FINISH}


def test_a_cancelled_request_gives_its_blocks_back_with_the_next_step(openvino: Open) -> None:
    """33 + 20 tokens: 2 + 1 blocks; the numbers are those of the forward pass and follow a step later."""
    engine = openvino()
    leaves, stays = submit(engine, 0, 33, 20), submit(engine, 1, 20, 9)
    assert used(steps(engine, 2)) == [3, 3]
    engine.cancel(leaves)
    seen = steps(engine, 2)
    assert dict(seen[0].finished) == {leaves: Release.CANCEL}
    assert used(seen) == [3, 1]
    assert [observation.num_running for observation in seen] == [1, 1]
    rest = steps(engine, 6)
    assert {stays: Release.FINISH} in [dict(observation.finished) for observation in rest]
    assert used(rest)[-1] == 0


def test_what_cannot_fit_is_refused_in_its_own_words(openvino: Open) -> None:
    """200 tokens are 7 blocks; 4 are there."""
    engine = openvino(num_blocks=4)
    name = submit(engine, 0, 200, 3)
    seen = steps(engine, 3)
    refused = {key: why for observation in seen for key, why in observation.refused.items()}
    assert refused == {name: "IGNORED: nothing could be scheduled in the step"}
    assert used(seen)[-1] == 0


def test_an_engine_that_goes_amid_requests_leaves_its_process_alive(openvino: Open) -> None:
    """The older version aborts where a pipeline goes that holds blocks: what is under way is ended before."""
    for _ in range(2):
        engine = openvino(OLDER)
        submit(engine, 0, 100, 50)
        submit(engine, 1, 100, 50, answers=3)
        assert used(steps(engine, 2))[-1] == 4 + 3 + 3
        del engine


def test_the_older_version_says_nothing_of_bytes(openvino: Open) -> None:
    engine = openvino(OLDER)
    submit(engine, 0, 20, 4)
    (seen,) = steps(engine, 1)
    assert (seen.counts[0].used_blocks, seen.counts[0].pool_bytes) == (1, None)


def test_what_it_is_and_does(openvino: Open) -> None:
    spec = openvino(prefix_cache=True, options={"max_step_tokens": 128}).spec
    assert (spec.name, spec.version, spec.dtype) == ("openvino", NEWEST, "bf16")
    assert dict(spec.effective) == {
        "block_size": 32,
        "num_blocks": 64,
        "prefix_cache": True,
        "max_step_tokens": 128,
        "dynamic_split_fuse": True,
        "kv_precision": "bf16",
    }
    assert spec.capabilities == {
        Capability.PAGED,
        Capability.CHUNKED_PREFILL,
        Capability.PREEMPTION,
        Capability.PREFIX_CACHE,
        Capability.REQUEST_DRIVEN,
        Capability.SAMPLES,
    }
    whole = openvino(options={"dynamic_split_fuse": False, "max_sequences": 2}).spec
    assert whole.effective["max_sequences"] == 2
    assert not whole.claims(Capability.CHUNKED_PREFILL)


def test_the_batch_is_limited_where_the_engine_limits_it(openvino: Open) -> None:
    engine = openvino(options={"dynamic_split_fuse": False, "max_sequences": 2})
    for key in range(5):
        submit(engine, key, 20, 4)
    assert [observation.num_running for observation in steps(engine, 3)] == [2, 2, 2]


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"block_size": 16}, "blocks of 16 tokens: on a CPU it has 32 only"),
        ({"num_blocks": 2**19 + 1}, "at most 524288 can be told"),
        ({"watermark_blocks": 1}, "a watermark of 1 blocks"),
        ({"options": {"null_blocks": 1}}, "unknown option 'null_blocks'"),
        ({"options": {"max_sequences": 8}}, "max_sequences has no effect while prompts are split"),
        ({"options": {"max_step_tokens": 0}}, "max_step_tokens is 0"),
        ({"options": {"dynamic_split_fuse": 1}}, "dynamic_split_fuse is 1"),
        ({"options": {"kv_precision": "f32"}}, "a cache of f32"),
        ({"dtype": Dtype.FLOAT32}, "a cache of float32"),
    ],
)
def test_what_it_cannot_do_is_refused(openvino: Open, config: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        openvino(**config)


@pytest.mark.parametrize("prefix_cache", [False, True], ids=["alone", "cached"])
@pytest.mark.parametrize("workload", ["boundary", "cancel-burst", "divergence-burst"])
def test_a_workload_keeps_every_law(openvino: Open, workload: str, prefix_cache: bool) -> None:
    engine = openvino(num_blocks=1024, prefix_cache=prefix_cache)
    done = replay_requests(synthetic(workload), engine)
    assert done.violations == ()
    assert {law.invariant for law in done.not_judged} == {"content", "closure"}
    assert done.refused == {}


def test_the_law_of_use_is_tight_on_it(openvino: Open) -> None:
    """One block more or less in any step of a sharing-free workload is named."""

    class Off:
        def __init__(self, engine: RequestEngine, by: int) -> None:
            self.engine, self.by, self.looks = engine, by, 0
            self.spec = engine.spec
            self.submit, self.cancel, self.step = engine.submit, engine.cancel, engine.step

        def observe(self) -> Observation:
            seen = self.engine.observe()
            self.looks += 1
            (counts,) = seen.counts
            assert counts.used_blocks is not None
            wrong = counts.used_blocks + (self.by if self.looks == 5 else 0)
            return replace(seen, counts=(replace(counts, used_blocks=wrong),))

    trace = synthetic("boundary")
    for by, broken in ((0, set()), (1, {"used"}), (-1, {"used"})):
        done = replay_requests(trace, Off(openvino(num_blocks=1024), by))
        assert {violation.invariant for violation in done.violations} == broken


@pytest.mark.parametrize(
    ("workload", "num_blocks", "first"), [("boundary", 1024, None), ("thrash", 120, None), ("churn", 64, 228)]
)
def test_versions_part_under_pressure_alone(
    openvino: Open, workload: str, num_blocks: int, first: int | None
) -> None:
    """Between 2026.0 and 2026.2 the scheduler came to admit more under pressure; elsewhere nothing moved.

    ``first`` is the first row that differs: with 64 blocks, 320 requests take 2261 steps, and then 2243.
    """
    rows = []
    for version in (OLDER, NEWEST):
        done = replay_requests(synthetic(workload), openvino(version, num_blocks=num_blocks))
        assert done.violations == ()
        pool = done.timeline.pools[0]
        rows.append([pool.column(name).tolist() for name in ("live_blocks", "running", "finished")])
    older, newest = (list(zip(*columns, strict=True)) for columns in rows)
    parted = [step for step, (a, b) in enumerate(zip(older, newest, strict=False)) if a != b]
    assert parted[:1] == ([] if first is None else [first])
    assert first is None or len(newest) < len(older)
