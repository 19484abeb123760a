"""The named workloads hold what their descriptions say."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest

from kvsuite.errors import TraceError
from kvsuite.trace.identity import content_hash
from kvsuite.trace.load import summarize
from kvsuite.trace.model import ABSENT, ForkKind
from kvsuite.trace.synthetic import describe, synthetic, workload_names

STEP_US = 50_000
DOCUMENT = Path(__file__).parents[2] / "docs" / "traces.md"
NAMES = (
    "handbook",
    "chat",
    "long-context",
    "shared-prefix",
    "shared-prompts",
    "cancel-burst",
    "divergence-burst",
    "thrash",
    "churn",
    "boundary",
)


def test_the_names() -> None:
    assert set(workload_names()) == set(NAMES)
    with pytest.raises(TraceError, match="unknown workload chats: the workloads are handbook, chat"):
        synthetic("chats")
    with pytest.raises(TraceError, match="unknown workload"):
        describe("chats")


@pytest.mark.parametrize("name", NAMES)
def test_a_name_stands_for_one_trace_and_a_seed_for_another(name: str) -> None:
    first = synthetic(name)

    assert describe(name)
    assert "\n" not in describe(name)
    assert content_hash(synthetic(name)) == content_hash(first)
    if name != "boundary":
        assert content_hash(synthetic(name, seed=99)) != content_hash(first)
    assert first.source.name == name
    assert first.rows_read == len(first)


@pytest.mark.parametrize("name", NAMES)
def test_a_workload_is_documented(name: str) -> None:
    assert f"| `{name}` | {describe(name)} |" in DOCUMENT.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", NAMES)
def test_a_workload_fits_a_golden(name: str) -> None:
    trace = synthetic(name)
    longest = int(trace.output_tokens.max())

    # Even if nothing is ever delayed, arrivals and the longest answer stay below 2,000 steps of 50 ms.
    assert int(trace.arrival_us.max()) // STEP_US + longest < 2_000


def test_handbook_lengths_are_the_printed_ones() -> None:
    trace = synthetic("handbook")
    lengths = trace.prompt_tokens

    # Drawn again by the recipe: seed 42, eight uniforms away, exponential of scale 300, clipped, cut.
    np.random.seed(42)
    np.random.rand(8)
    drawn = np.clip(np.random.exponential(300, size=50), 50, 2048).astype(int)
    assert lengths.tolist() == drawn.tolist()
    # The figures that the handbook prints.
    assert (lengths.min(), lengths.max(), lengths.sum(), round(lengths.mean())) == (50, 1051, 14_582, 292)
    assert int((-(-lengths // 16) * 16).sum()) == 14_976
    assert set((lengths + trace.max_output_tokens).tolist()) == {2048}
    assert (trace.output_tokens.max(), trace.arrival_us.max()) == (0, 0)
    assert 50 * 2048 == 102_400


def test_chat_turns_repeat_the_session_so_far() -> None:
    trace = synthetic("chat")

    assert 150 < len(trace) < 400
    for session in range(48):
        rows = np.flatnonzero(trace.session == session).tolist()
        assert trace.turn[rows].tolist() == list(range(len(rows)))
        assert 2 <= len(rows) <= 8
        for before, after in itertools.pairwise(rows):
            said = int(trace.prompt_tokens[before] + trace.output_tokens[before])
            assert trace.prompt_tokens[after] > said
            known, blocks = trace.content(before), said // 16
            assert trace.prompt(after).block_keys(16)[:blocks] == known.block_keys(16, blocks)


def test_long_context_asks_again() -> None:
    trace = synthetic("long-context")

    assert trace.prompt_tokens.min() >= 2_000
    assert trace.prompt_tokens.max() <= 12_090
    assert summarize(trace).hit_tokens > 2_000


def test_shared_prefix_is_400_tokens_of_every_prompt() -> None:
    trace = synthetic("shared-prefix")
    heads = {tuple(trace.prompt(k).block_keys(16)[:25]) for k in range(len(trace))}

    assert (len(trace), len(heads)) == (200, 1)
    assert summarize(trace).hit_tokens == 199 * 400


def test_shared_prompts_are_24_in_whole_blocks_of_16() -> None:
    trace = synthetic("shared-prompts")
    lengths = trace.prompt_tokens.tolist()
    # 1 to 23 tokens of its own follow 64, 128, 256 or 512 shared ones, so the length tells which.
    heads = [next(n for n in (64, 128, 256, 512) if 1 <= length - n <= 23) for length in lengths]
    keys = {trace.prompt(k).block_keys(16)[head // 16 - 1]: head for k, head in enumerate(heads)}

    assert (len(trace), len(keys)) == (1500, 24)
    assert set(keys.values()) == {64, 128, 256, 512}
    assert sum(keys.values()) == 5_248
    # In a cache that forgets nothing, all is found but the first use of each, and nothing beyond.
    assert summarize(trace).hit_tokens == sum(heads) - 5_248


def test_shared_prompts_come_one_a_step() -> None:
    trace = synthetic("shared-prompts")
    gaps = np.diff(trace.arrival_us)

    assert set(gaps.tolist()) == {0, STEP_US, 2 * STEP_US}
    assert 0.95 < gaps.mean() / STEP_US < 1.05
    assert set(trace.output_tokens.tolist()) == set(range(23))


def test_cancel_burst_cancels_half_in_every_way() -> None:
    trace = synthetic("cancel-burst")
    after, at = trace.cancel_after, trace.cancel_at_us

    assert (len(trace), trace.arrival_us.max() <= 1_000_000) == (160, True)
    assert int((after == 0).sum()) >= 20
    assert int((after > 0).sum()) > 0
    assert int(((after != ABSENT) | (at != ABSENT)).sum()) == 80
    assert np.unique(at[at != ABSENT] + trace.arrival_us.min()).size == 1


def test_divergence_burst_forks_at_the_edges_of_a_block() -> None:
    trace = synthetic("divergence-burst")
    forks = {
        (ForkKind(int(trace.fork_kind[c])), int(trace.fork_at[c]) % 16, len(children))
        for children in trace.children.values()
        for c in children
    }

    assert forks == set(itertools.product((ForkKind.SAMPLE, ForkKind.BEAM), (0, 1, 15), (1, 3, 7)))
    parents = trace.parent == ABSENT
    assert trace.prompt_tokens[parents].sum() <= 8192, "one step of the default budget prefills all parents"
    assert len(trace) <= 256, "all run at once under the default limit"
    assert (trace.arrival_us == 0).all()
    children = np.flatnonzero(~parents)
    assert (trace.prompt_tokens + trace.output_tokens > trace.fork_at)[children].all(), "every child writes"


def test_thrash_asks_for_more_than_its_pool() -> None:
    trace = synthetic("thrash")
    final = trace.prompt_tokens + trace.output_tokens
    at_once = trace.arrival_us < 1_000_000

    assert final.max() <= 256 * 16 // 4, "any one request fits four times"
    assert final[at_once].sum() > 2 * 256 * 16
    assert summarize(trace).hit_tokens > 0


def test_churn_has_all_of_it() -> None:
    trace = synthetic("churn")
    summary = summarize(trace)

    assert 350 <= len(trace) <= 500
    assert summary.hit_share is not None
    assert summary.hit_share > 0.3
    assert summary.forks["sample"] >= 20
    assert summary.forks["beam"] >= 20
    assert int((trace.cancel_after != ABSENT).sum()) >= 10
    assert int((trace.cancel_at_us != ABSENT).sum()) >= 5
    assert summary.capped == len(trace)
    assert 100 < summary.prompt.p50 < 500
    assert 10 < summary.output.p50 < 100


def test_boundary_meets_every_edge() -> None:
    trace = synthetic("boundary")

    assert {1, 15, 16, 17, 63} <= set(trace.prompt_tokens.tolist())
    assert set((trace.prompt_tokens % 16).tolist()) == {0, 1, 15}
    assert {0, 1, 15} <= set(((trace.prompt_tokens + trace.output_tokens) % 16).tolist())
