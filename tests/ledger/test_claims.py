"""The laws of a claim: what is called cache, what shares bytes, what memory backs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvsuite.engine.snapshot import MemoryClaim, PoolKey, PoolSpec, Storage
from kvsuite.ledger.claims import claim_laws, committed_bytes

PAGE = 4096
SPEC = PoolSpec(PoolKey(), num_blocks=64, block_size=4, bytes_per_token=128)
POOL_BYTES = 64 * 512
POOL = Storage("pool", 0x10000, POOL_BYTES)
TABLES = Storage("tables", 0x20000, 2048)
INSIDE = replace(TABLES, data_pointer=0x10000 + POOL_BYTES - 1)
BESIDE = replace(TABLES, data_pointer=0x10000 + POOL_BYTES)
SOUND = MemoryClaim((POOL, TABLES), POOL_BYTES)


def fired(claim: MemoryClaim) -> list[str]:
    return [law.invariant for law in claim_laws(claim, [SPEC])]


def test_a_sound_claim_breaks_no_law() -> None:
    assert fired(SOUND) == []
    assert fired(replace(SOUND, storages=(POOL, POOL, TABLES))) == []


@pytest.mark.parametrize(
    ("claim", "seen"),
    [
        (replace(SOUND, claimed_cache_bytes=POOL_BYTES + 2048), ["device"]),
        (replace(SOUND, claimed_cache_bytes=POOL_BYTES + 2049), ["device", "claim-beyond"]),
        (replace(SOUND, claimed_cache_bytes=POOL_BYTES - 1), ["device"]),
        (replace(SOUND, storages=(POOL, INSIDE)), ["claim-overlap"]),
        (replace(SOUND, storages=(POOL, BESIDE)), []),
        (MemoryClaim((replace(POOL, nbytes=POOL_BYTES // 2),), POOL_BYTES // 2), ["device"]),
    ],
)
def test_each_law_fires(claim: MemoryClaim, seen: list[str]) -> None:
    assert fired(claim) == seen


@pytest.mark.parametrize(
    ("claimed", "used_blocks", "sound"),
    [
        (None, 3, True),
        (0, 0, True),
        (1, 0, False),
        (512, 1, True),
        (511, 1, False),
        (512 + 2 * (PAGE - 1), 1, True),  # a byte of the block at the end of each page beside it
        (512 + 2 * (PAGE - 1) + 1, 1, False),
        (POOL_BYTES, 1, False),
        (POOL_BYTES, 64, True),
        (POOL_BYTES + 1, 64, False),
    ],
)
def test_committed_bytes_are_bounded_by_blocks_ever_written(
    claimed: int | None, used_blocks: int, sound: bool
) -> None:
    claim = replace(SOUND, committed_cache_bytes=claimed)
    found = [law.invariant for law in committed_bytes(claim, SPEC, used_blocks, PAGE)]
    assert found == ([] if sound else ["claim-committed"])
