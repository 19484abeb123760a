"""Physical placement: scattered room is room, and only what nobody can use is waste.

Paged: ``|F| * b >= need`` implies success. Contiguous: the largest hole decides. Operational waste is
``slack + over-reserved + pad + free bytes that no queued declared request can use``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from kvsuite.device.cuda_model import MIB, CudaAllocatorModel
from kvsuite.engine.contract import Capability, Release, SupportsResetCache
from kvsuite.engine.snapshot import PoolKind
from kvsuite.errors import InvariantViolation
from kvsuite.ledger.contiguity import (
    admits_what_fits,
    capacity_in_pages,
    free_runs,
    hole_waste_bytes,
    largest_hole,
    pages_of,
    pinned_pages,
    run_claimed,
    waste_told,
    wasted_bytes,
)
from kvsuite.ledger.counts import kept_back
from kvsuite.ledger.invariants import raise_violations
from kvsuite.replay.judged import offered

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    from kvsuite.ledger.invariants import Violation
    from kvsuite.plugin.replays import EngineOpener
    from kvsuite.replay.scene import Scene

    Play = Callable[..., Scene]


def expect_none(*laws: Iterable[Violation]) -> None:
    """Raise what the laws found."""
    raise_violations([violation for law in laws for violation in law])


@pytest.fixture
def play(kv_scene: Play, open_engine: EngineOpener) -> Play:
    """Play a scene on a pool of so many usable blocks; skip where blocks are not those of one pool.

    With ``beside`` the pool has the blocks that admission keeps back besides: so many for who is let in.
    """

    def opened(usable: int, block_size: int = 4, *, beside: bool = False, **config: Any) -> Scene:
        config = {"max_model_tokens": usable * block_size, "prefix_cache": False, **config}
        spec = open_engine(block_size=block_size, num_blocks=usable + 8, **config).spec
        usable += kept_back(spec) if beside else 0
        device = [pool for pool in spec.pools if pool.key.tier == "device"]
        if len(device) > 1 or device[0].kind is not PoolKind.FULL:
            pytest.skip(f"{len(device)} pools, the first of kind {device[0].kind.value}")
        return kv_scene(
            block_size=block_size, num_blocks=usable + device[0].never_allocatable_blocks, **config
        )

    return opened


def checkerboard(scene: Scene, tenants: int, tokens: int) -> None:
    """Fill the pool with equal tenants and let every second one go."""
    for tenant in range(tenants):
        assert scene.admit(f"t{tenant}", tokens, max_tokens=tokens).accepted
    scene.step()
    for tenant in range(0, tenants, 2):
        scene.release(f"t{tenant}")


@pytest.mark.requires(Capability.PAGED)
@pytest.mark.parametrize("block_size", [1, 4, 16])
def test_every_second_block_free_still_admits(play: Play, block_size: int) -> None:
    """8 blocks, every second one free: a request of 4 blocks is admitted, one of 5 is not."""
    scene = play(8, block_size, beside=True)
    checkerboard(scene, 8, block_size)
    five = offered(scene, "five", 4 * block_size + 1)
    four = offered(scene, "four", 4 * block_size)
    expect_none(admits_what_fits(five), admits_what_fits(four))
    assert not five.admission.accepted
    assert four.admission.accepted
    scene.step()
    assert len(scene.table("four")) == len(set(scene.table("four").tolist()))
    scene.drain()
    scene.judge()


@pytest.mark.requires(Capability.PAGED, Capability.PREEMPTION)
@pytest.mark.parametrize("block_size", [1, 4, 16])
def test_a_saved_sequence_comes_back_without_a_hole(play: Play, block_size: int) -> None:
    """4 blocks are saved, the pool fills and every second block comes free: 4 are enough to come back."""
    scene = play(8, block_size, beside=True)
    scene.admit("saved", 4 * block_size)
    scene.step()
    scene.release("saved", Release.PREEMPT)
    checkerboard(scene, 8, block_size)
    back = offered(scene, "saved", 4 * block_size)
    expect_none(admits_what_fits(back))
    assert back.admission.accepted
    scene.step()
    scene.drain()
    scene.judge()


def test_neighbours_that_end_make_one_hole(play: Play) -> None:
    """Where two neighbours ended, paged or not, a request as long as both gets in."""
    scene = play(8, beside=True)
    for tenant in range(4):
        assert scene.admit(f"t{tenant}", 8, max_tokens=8).accepted
    scene.step()
    for tenant in (1, 2):
        scene.release(f"t{tenant}")
    both = offered(scene, "both", 16, max_tokens=16)
    expect_none(
        admits_what_fits(both), run_claimed(both.spec, both.before), run_claimed(both.spec, both.after)
    )
    assert both.admission.accepted
    scene.step()
    scene.drain()
    scene.judge()


@pytest.mark.requires(Capability.PREFIX_CACHE, Capability.RESET_CACHE)
def test_idle_blocks_do_not_hold_pages_for_ever(play: Play) -> None:
    """Pages of 8 blocks: packed, 100 idle blocks pin 13; one a page, 100. After a full eviction, none.

    Held pages are at most the ideal and one a layer; the report had 8.9 GiB held under a cap of 2.2 GiB.
    """
    scene = play(64, prefix_cache=True)
    spec = scene.engine.spec.pools[0]
    one_a_page, packed = np.arange(0, 800, 8, dtype=np.int32), np.arange(100, dtype=np.int32)
    assert [pages_of(ids, 8) for ids in (one_a_page, packed)] == [100, 13]
    expect_none(pinned_pages(spec, packed, 8))
    with pytest.raises(InvariantViolation, match="pin 100 pages"):
        expect_none(pinned_pages(spec, one_a_page, 8, cap_blocks=200))
    for tenant in range(16):
        scene.admit(f"t{tenant}", 16)
    scene.step()
    scene.drain()
    assert isinstance(scene.engine, SupportsResetCache)
    assert scene.engine.reset_cache()
    shot = scene.engine.snapshot()[0]
    expect_none(pinned_pages(spec, np.concatenate([shot.cached, shot.table_blocks]), 8, layers=0))
    assert not len(shot.cached)
    scene.judge()


@pytest.mark.requires(Capability.PAGED)
@pytest.mark.parametrize("usable", [4, 8, 16])
def test_every_free_block_can_be_taken(play: Play, usable: int) -> None:
    """Pages of 2 MiB, blocks of 1.5 MiB: 3 pages hold 2 whole blocks, not 3. What is free is given out."""
    expect_none(capacity_in_pages(2, 2 * MIB, 3 * MIB // 2, 3, "device/g0/r0"))
    with pytest.raises(InvariantViolation, match="expected 2: ids 0, 3"):
        expect_none(capacity_in_pages(3, 2 * MIB, 3 * MIB // 2, 3, "device/g0/r0"))
    scene = play(usable)
    free = len(scene.engine.snapshot()[0].free)
    everything = offered(scene, "everything", free * 4)
    expect_none(admits_what_fits(everything))
    assert everything.admission.accepted
    scene.step()
    assert len(scene.table("everything")) == free == usable
    scene.drain()
    scene.judge()


def test_the_allocators_reserve_is_a_line_of_its_own() -> None:
    """A MODEL of the CUDA rules: 402 MiB, freed, split by a survivor of 72; 384 MiB do not fit the 330 left.

    The reserve is reserved - allocated, a line of its own, and the largest hole says what it is good for.
    """
    allocator = CudaAllocatorModel()
    large = allocator.malloc(402 * MIB)
    allocator.free(large)
    allocator.malloc(72 * MIB)
    stats = allocator.memory_stats()
    reserved, allocated = stats["reserved_bytes.all.current"], stats["allocated_bytes.all.current"]
    assert (reserved, allocated) == (402 * MIB, 72 * MIB)
    assert reserved - allocated == 330 * MIB
    allocator.malloc(384 * MIB)
    assert allocator.memory_stats()["reserved_bytes.all.current"] == (402 + 384) * MIB


@pytest.mark.requires(Capability.PAGED)
@pytest.mark.parametrize("tenant_tokens", [4, 7, 8])
def test_a_scattered_free_block_is_no_waste(
    play: Play, tenant_tokens: int, summary_line: Callable[[str], None]
) -> None:
    """A dashboard that calls every free block outside the longest run wasted is refuted: all of them admit.

    Operational waste on this checkerboard is the slack of the tenants that stay, and nothing else.
    """
    scene = play(16, beside=True)
    kept = kept_back(scene.engine.spec)
    tenant_blocks = -(-tenant_tokens // 4)
    tenants = 16 // tenant_blocks
    checkerboard(scene, tenants, tenant_tokens)
    spec, shot = scene.engine.spec.pools[0], scene.engine.snapshot()[0]
    room = len(shot.free) - kept
    assert room == 8
    queue = [room * 4]
    slack_bytes = tenants // 2 * (tenant_blocks * 4 - tenant_tokens) * spec.bytes_per_token
    pad_bytes = spec.num_blocks * spec.pad_bytes_per_block
    assert wasted_bytes(spec, shot, queue) == slack_bytes + pad_bytes
    expect_none(run_claimed(spec, shot))
    assert len(free_runs(shot.free)) > 1
    told = hole_waste_bytes(spec, shot, queue)
    with pytest.raises(InvariantViolation, match="waste"):
        expect_none(waste_told(spec, shot, queue, told, "a dashboard of holes"))
    everything = offered(scene, "everything", room * 4)
    expect_none(admits_what_fits(everything))
    assert everything.admission.accepted
    assert len(everything.after.free) == kept
    assert wasted_bytes(spec, everything.after, [4]) == slack_bytes + pad_bytes
    scene.step()
    scene.drain()
    scene.judge()
    if tenant_tokens == 4:
        hole = largest_hole(shot.free)
        summary_line(f"PASS: {room} scattered free blocks, longest run {hole}, took one request of {room}")
