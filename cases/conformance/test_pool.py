"""How the pool came to its size, and what of the device's memory is claimed as cache (I10, I13).

An engine that claims BUDGET is judged on what it says. Cases with exact figures open it on a device that
exists on paper, by the options that `kvsuite.engine.extensions.paper_device` lists; an engine without such
options is left out of these.
"""

from __future__ import annotations

from dataclasses import replace
from mmap import PAGESIZE
from typing import TYPE_CHECKING

import numpy as np
import pytest

from kvsuite.cache.layout import model_layout
from kvsuite.engine.contract import Capability, Engine, SupportsBudget, SupportsMemory
from kvsuite.errors import ConfigError
from kvsuite.ledger.budget import (
    budget_closes,
    ids_on_every_rank,
    neighbour_effect,
    pool_as_declared,
    pool_fills_room,
    request_in_force,
    same_start,
    smallest_rank,
    terms_as_measured,
)
from kvsuite.ledger.bytes_law import declared_pages
from kvsuite.ledger.claims import claim_laws, committed_bytes
from kvsuite.ledger.invariants import raise_violations
from kvsuite.trace.model import RequestId
from kvsuite.trace.tokens import TokenContent, TokenRun

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvsuite.engine.contract import Admission
    from kvsuite.engine.snapshot import Budget, MemoryClaim
    from kvsuite.ledger.invariants import Violation
    from kvsuite.plugin.replays import EngineOpener
    from kvsuite.replay.scene import Scene

BLOCK = 4
UNIT = model_layout("tiny").block_bytes(BLOCK)
"""Bytes of one block: the paper devices below are given in blocks."""
MANY = 5000
MEASURED = ("weights", "activation", "graphs", "other", "neighbour")
OPTIONS = ("memory_percent", "fraction_of", "sequences", "draft_block_bytes")


def on_paper(
    open_engine: EngineOpener,
    device: int | tuple[int, ...],
    *,
    asked: int = MANY,
    max_model_tokens: int | None = None,
    **told: int | str,
) -> Engine:
    """Open the engine on a paper device; sizes in blocks, `OPTIONS` as they are, what is not told is 0."""
    ranks = (device,) if isinstance(device, int) else device
    options: dict[str, int | str | bool] = {
        f"{name}_bytes": int(told.get(name, 0)) * UNIT for name in MEASURED
    }
    options["device_bytes"] = ",".join(str(blocks * UNIT) for blocks in ranks)
    options |= {name: told[name] for name in OPTIONS if name in told}
    try:
        return open_engine(
            block_size=BLOCK, num_blocks=asked, max_model_tokens=max_model_tokens, options=options
        )
    except ConfigError as error:
        pytest.skip(f"no paper device here: {error}")


def budget_of(engine: Engine) -> Budget:
    assert isinstance(engine, SupportsBudget)
    return engine.budget()


def judge(
    engine: Engine,
    *found: Violation,
    asked: int = MANY,
    draft_bytes: int = 0,
    measured: dict[str, int],
) -> None:
    """Hold an engine's budget against every law of it, beside what was found; ``measured`` in blocks."""
    told, pools = budget_of(engine), engine.spec.pools
    raise_violations(
        [
            *found,
            *budget_closes(told),
            *terms_as_measured(told, {f"{name}_bytes": blocks * UNIT for name, blocks in measured.items()}),
            *request_in_force(told),
            *pool_as_declared(told, pools, draft_bytes),
            *smallest_rank(told, pools[0].num_blocks),
            *pool_fills_room(told, pools[0].block_bytes + draft_bytes, pools[0].num_blocks, asked),
        ],
        shown=8,
    )


def offer(engine: Engine, name: str, blocks: int) -> Admission:
    tokens = blocks * BLOCK
    run = TokenRun(TokenContent((len(name),), ()), 0, tokens)
    return engine.admit(RequestId(name), run, first_chunk_tokens=tokens)


def claim_of(engine: Engine) -> MemoryClaim:
    assert isinstance(engine, SupportsMemory)
    return engine.memory()


@pytest.mark.requires(Capability.BUDGET)
@pytest.mark.parametrize("num_blocks", [1, 8, 64])
def test_every_byte_of_the_device_is_named_once(open_engine: EngineOpener, num_blocks: int) -> None:
    """Opened as any engine is: the sum closes, the pool is the declared one, the request is in force."""
    engine = open_engine(block_size=BLOCK, num_blocks=num_blocks)
    judge(engine, asked=num_blocks, measured={})


@pytest.mark.requires(Capability.BUDGET)
def test_each_term_is_charged_once(open_engine: EngineOpener) -> None:
    """Of 20 blocks' bytes, weights take 10, the peak 1 and graphs 1 (vllm #37426): 8 are left, not 7."""
    engine = on_paper(open_engine, 20, weights=10, activation=1, graphs=1)
    judge(engine, measured={"weights": 10, "activation": 1, "graphs": 1})
    assert engine.spec.pools[0].num_blocks == 8
    early = on_paper(open_engine, 20, weights=10, other=3)
    judge(early, measured={"weights": 10, "other": 3})
    assert early.spec.pools[0].num_blocks == 7


@pytest.mark.requires(Capability.BUDGET)
def test_draft_pages_come_out_of_the_same_budget(open_engine: EngineOpener) -> None:
    """Target page p, draft page p / 2: a budget of 60 p holds 60 / 1.5 = 40 blocks, not 60."""
    engine = on_paper(open_engine, 100, weights=40, draft_block_bytes=UNIT // 2)
    judge(engine, draft_bytes=UNIT // 2, measured={"weights": 40})
    assert engine.spec.pools[0].num_blocks == 40


@pytest.mark.requires(Capability.BUDGET)
@pytest.mark.parametrize("ranks", [(2111, 2055), (250, 225), (8, 9, 7, 8)])
def test_all_ranks_use_the_smallest(open_engine: EngineOpener, ranks: tuple[int, ...]) -> None:
    """Shards for 1,000 and 900 tokens serve 900; ids end one below the smallest pool (nano-vllm #187)."""
    engine = on_paper(open_engine, ranks)
    smallest = min(ranks)
    assert offer(engine, "all", smallest).accepted
    one_more = offer(engine, "one more", 1)
    handed_out = engine.snapshot()[0].table_blocks.tolist()
    judge(engine, *ids_on_every_rank(handed_out, budget_of(engine)), measured={})
    assert engine.spec.pools[0].num_blocks == smallest
    assert not one_more.accepted


@pytest.mark.requires(Capability.BUDGET)
@pytest.mark.parametrize(("percent", "blocks"), [(50, 50), (25, 25), (100, 100)])
def test_the_requested_fraction_is_in_force(open_engine: EngineOpener, percent: int, blocks: int) -> None:
    """Half of 100 is 50, and not the default's 90 (TensorRT-LLM #6807)."""
    engine = on_paper(open_engine, 100, memory_percent=percent)
    judge(engine, measured={})
    assert engine.spec.pools[0].num_blocks == blocks
    assert budget_of(engine).effective_fraction == percent / 100


@pytest.mark.requires(Capability.BUDGET)
@pytest.mark.parametrize(("fraction_of", "blocks"), [("free", 36), ("total", 20)])
def test_the_fraction_says_what_it_is_a_fraction_of(
    open_engine: EngineOpener, fraction_of: str, blocks: int
) -> None:
    """0.6 with 40 of 100 in weights: 0.6 * 60 = 36 of free memory, 60 - 40 = 20 of the total; never 60."""
    engine = on_paper(open_engine, 100, weights=40, memory_percent=60, fraction_of=fraction_of)
    judge(engine, measured={"weights": 40})
    assert engine.spec.pools[0].num_blocks == blocks
    assert budget_of(engine).fraction_of == fraction_of
    other = on_paper(open_engine, 100, fraction_of="total" if fraction_of == "free" else "free")
    assert engine.spec.effective != other.spec.effective, (
        f"effective values {dict(engine.spec.effective)} do not tell a fraction of total from one of free: "
        "goldens would not either"
    )


@pytest.mark.requires(Capability.BUDGET)
def test_the_pool_is_sized_for_the_length_asked_for(open_engine: EngineOpener) -> None:
    """One sequence of 1,024 tokens is 256 blocks of 4, whatever the device holds (mlc-llm #2026)."""
    engine = on_paper(open_engine, 100_000, max_model_tokens=1024, asked=100_000, sequences=1)
    judge(engine, asked=256, measured={})
    assert engine.spec.pools[0].num_blocks == 256


@pytest.mark.requires(Capability.PAGED)
def test_two_starts_give_the_same_pool(open_engine: EngineOpener) -> None:
    first, second, third = (open_engine(block_size=BLOCK, num_blocks=32) for _ in range(3))
    raise_violations([*same_start(first.spec.pools, second.spec.pools)])
    raise_violations([*same_start(second.spec.pools, third.spec.pools)])


@pytest.mark.requires(Capability.BUDGET)
@pytest.mark.parametrize(
    ("fraction_of", "alone", "beside"), [("total", 40, 40), ("free", 45, 30)], ids=["total", "free"]
)
def test_a_neighbour_takes_only_what_the_budget_says(
    open_engine: EngineOpener, fraction_of: str, alone: int, beside: int
) -> None:
    """30 of another process: nothing of half the total; half of 30 of half of what is free, once."""
    sizes = {}
    for neighbour in (0, 30):
        engine = on_paper(
            open_engine, 100, weights=10, neighbour=neighbour, memory_percent=50, fraction_of=fraction_of
        )
        sizes[neighbour] = engine.spec.pools[0].num_blocks
    taken = neighbour_effect((0, sizes[0]), (30 * UNIT, sizes[30]), 0.5, fraction_of, UNIT)
    judge(engine, *taken, measured={"weights": 10, "neighbour": 30})
    assert sizes == {0: alone, 30: beside}


@pytest.mark.requires(Capability.MEMORY)
@pytest.mark.parametrize(
    ("block_size", "num_blocks"), [(4, 16), (256, 320), (256, 368)], ids=["32KiB", "10MiB", "11.5MiB"]
)
def test_claimed_cache_is_what_the_storages_hold(
    open_engine: EngineOpener, block_size: int, num_blocks: int
) -> None:
    """Reserve, rounding and workspace are no cache, and a buffer seen twice is one.

    In ``tiny`` blocks of 256 tokens take 32 KiB. 10 MiB is the smallest pool that a split segment doubles the
    reserve of, and 11.5 MiB is rounded up to 12 under the CUDA allocator's rules.
    """
    engine = open_engine(block_size=block_size, num_blocks=num_blocks)
    claim = claim_of(engine)
    raise_violations([*claim_laws(claim, engine.spec.pools)])
    assert claim.claimed_cache_bytes == sum(pool.pool_bytes for pool in engine.spec.pools)


@pytest.mark.requires(Capability.MEMORY)
def test_committed_bytes_are_those_of_blocks_that_were_written(kv_scene: Callable[..., Scene]) -> None:
    """On a CPU a pool of 512 KiB is mapped at once, and backed page by page as blocks come into use."""
    scene = kv_scene(block_size=BLOCK, num_blocks=1024)
    pool = scene.engine.spec.pools[0]
    page_bytes = max(PAGESIZE, 4096)
    written: set[int] = set()
    for name, tokens in (("a", 1), ("b", 9), ("c", 17)):
        scene.admit(name, tokens)
        scene.step()
        written |= set(scene.table(name).tolist())
        claim = claim_of(scene.engine)
        scene.violations += committed_bytes(claim, pool, len(written), page_bytes, scene.step_number)
    scene.drain()
    claim = claim_of(scene.engine)
    scene.violations += committed_bytes(claim, pool, len(written), page_bytes, scene.step_number)
    scene.judge()
    assert len(written) == 1 + 3 + 5


@pytest.mark.requires(Capability.MEMORY)
@pytest.mark.parametrize("alignment_bytes", [1, 512, 768, 4096])
def test_padding_is_no_payload(open_engine: EngineOpener, alignment_bytes: int) -> None:
    """Blocks of 512 bytes aligned to 768 hold 512 bytes of tokens and 256 of pad."""
    layout = replace(model_layout("tiny"), block_alignment_bytes=alignment_bytes)
    engine = open_engine(block_size=BLOCK, num_blocks=8, layout=layout)
    pools = engine.spec.pools
    raise_violations([*declared_pages(pools, layout)])
    pads = np.array([pool.pad_bytes_per_block for pool in pools])
    assert (
        pads == -np.array([pool.block_size * pool.bytes_per_token for pool in pools]) % alignment_bytes
    ).all()
