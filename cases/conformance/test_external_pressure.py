"""External pressure, measured: who is refused at equal free capacity, and how large a request still goes in.

A scattered free block is no waste where any free block serves. A pool that needs unbroken runs is refused
by a hole with the same free slots.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kvsuite.cache.layout import model_layout
from kvsuite.engine.config import EngineConfig
from kvsuite.engine.contract import Admission, Capability, Engine, RefusalReason, Release
from kvsuite.engine.registry import open_engine as open_any
from kvsuite.ledger.counts import kept_back
from kvsuite.trace.model import RequestId, Trace, TraceSource
from kvsuite.trace.rows import Row, trace_of
from kvsuite.trace.tokens import TokenContent, TokenRun

if TYPE_CHECKING:
    from kvsuite.plugin.replays import EngineOpener

BLOCK = 16
NUM_BLOCKS = 64
TENANT_TOKENS = 2 * BLOCK
TENANTS = NUM_BLOCKS * BLOCK // TENANT_TOKENS


def offer(engine: Engine, name: str, tokens: int) -> Admission:
    """Offer one request of ``tokens`` tokens that shares nothing."""
    run = TokenRun(TokenContent((int.from_bytes(name.encode()[-3:]),), ()), 0, tokens)
    return engine.admit(RequestId(name), run, first_chunk_tokens=tokens, max_tokens=tokens)


def checkerboard(engine: Engine) -> int:
    """Fill the pool with equal tenants, let every second one go, and return the slots that are free then.

    Null and trash blocks are left aside: a tenant can never own one.
    """
    (pool, *_) = engine.spec.pools
    usable_tokens = pool.usable_blocks * pool.block_size
    tenants = range((usable_tokens - kept_back(engine.spec) * pool.block_size) // TENANT_TOKENS)
    for tenant in tenants:
        assert offer(engine, f"t{tenant}", TENANT_TOKENS).accepted
    for tenant in tenants[::2]:
        engine.release(RequestId(f"t{tenant}"), Release.FINISH)
    return usable_tokens - len(tenants[1::2]) * TENANT_TOKENS


def largest_admissible(engine: Engine, upper: int) -> int:
    """Find by bisection the largest request the engine admits now; each try is undone."""
    low, high = 0, upper + 1
    while high - low > 1:
        middle = (low + high) // 2
        if offer(engine, f"probe{middle}", middle).accepted:
            engine.release(RequestId(f"probe{middle}"), Release.CANCEL)
            low = middle
        else:
            high = middle
    return low


@pytest.fixture
def engine(open_engine: EngineOpener) -> Engine:
    """Open it with `NUM_BLOCKS` blocks for admissions; skip where blocks are not those of one pool."""
    opened = open_engine(block_size=BLOCK, num_blocks=NUM_BLOCKS)
    device = [pool for pool in opened.spec.pools if pool.key.tier == "device"]
    if len(device) > 1 or device[0].block_size != BLOCK:
        pytest.skip(f"{len(device)} pools, the first of {device[0].block_size} tokens a block")
    more = device[0].never_allocatable_blocks + kept_back(opened.spec)
    return open_engine(block_size=BLOCK, num_blocks=NUM_BLOCKS + more) if more else opened


@pytest.mark.requires(Capability.PAGED)
@pytest.mark.parametrize("tokens", [1, 15, 16, 17, 511, 512, 513, 1024])
def test_a_paged_pool_admits_exactly_what_its_free_blocks_hold(engine: Engine, tokens: int) -> None:
    """Admitted if and only if ceil(n / b) + watermark <= free + reclaimable, however scattered they are."""
    kept = kept_back(engine.spec)
    assert engine.spec.pools[0].usable_blocks == NUM_BLOCKS + kept
    free_tokens = checkerboard(engine)
    admission = offer(engine, "one more", tokens)
    assert admission.accepted == (-(-tokens // BLOCK) + kept <= free_tokens // BLOCK)
    if admission.refusal is not None:
        assert admission.refusal.needed_blocks == -(-tokens // BLOCK)
        assert admission.refusal.free_blocks + admission.refusal.reclaimable_blocks == free_tokens // BLOCK


@pytest.mark.requires(Capability.PAGED)
def test_the_largest_admissible_request_is_all_that_is_free(engine: Engine) -> None:
    """Found by search; the formula is (free + reclaimable - watermark) * b."""
    free_tokens = checkerboard(engine)
    assert largest_admissible(engine, NUM_BLOCKS * BLOCK) == free_tokens - kept_back(engine.spec) * BLOCK


def every_offer() -> Trace:
    """The trace that the control with exact reservation must know: every request offered below."""
    sizes = {f"t{tenant}": TENANT_TOKENS for tenant in range(TENANTS)}
    sizes |= {f"probe{tokens}": tokens for tokens in range(1, NUM_BLOCKS * BLOCK + 1)}
    sizes["one more"] = TENANT_TOKENS + 1
    rows = [
        Row(request_id=name, timestamp=0, input_length=tokens, output_length=0)
        for name, tokens in sizes.items()
    ]
    return trace_of(rows, TraceSource("by hand", "external pressure"), block_size=BLOCK)


@pytest.mark.parametrize("control", ["contiguous-max", "contiguous-pow2", "contiguous-exact"])
def test_a_contiguous_pool_is_refused_by_a_hole_at_equal_free_bytes(control: str) -> None:
    """The same churn leaves the same free slots in holes of 32: 33 tokens are refused, 32 are not."""
    config = EngineConfig(
        model_layout("tiny"),
        BLOCK,
        NUM_BLOCKS,
        max_model_tokens=NUM_BLOCKS * BLOCK,
        trace=every_offer() if control == "contiguous-exact" else None,
    )
    engine = open_any(control, config)
    free_tokens = checkerboard(engine)
    refusal = offer(engine, "one more", TENANT_TOKENS + 1).refusal
    assert refusal is not None
    assert refusal.reason is RefusalReason.NO_CONTIGUOUS_RUN
    assert refusal.free_blocks == free_tokens >= TENANT_TOKENS + 1
    assert largest_admissible(engine, NUM_BLOCKS * BLOCK) == TENANT_TOKENS
