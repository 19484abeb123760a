"""Which block size is meant (I12): manager, kernel, hash; each declared, none contradicting another.

    b_manager mod b_kernel = 0
    kernel slot of token p = (T[p // B] * (B / k) + (p mod B) // k) * k + p mod k     a bijection

``B`` is the manager's block size, ``k`` the kernel's, ``T`` the manager's table (vllm #27547: the manager's
size where the kernel's was meant).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kvsuite.engine.snapshot import PoolKind
from kvsuite.ledger.invariants import Violation

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kvsuite.engine.contract import EngineSpec
    from kvsuite.engine.snapshot import Int32Array, Int64Array, PoolSpec

INVARIANT = "units"


def hash_unit(pools: Sequence[PoolSpec]) -> int:
    """Return the tokens that every hit is a multiple of: the common multiple of all groups' hash units."""
    units = [pool.hash_block_size or pool.block_size for pool in pools if pool.kind is not PoolKind.STATE]
    return int(np.lcm.reduce(units))


def kernel_slots(
    table: Int32Array, block_size: int, kernel_block_size: int, start: int, stop: int
) -> Int64Array:
    """Return the kernel's slots of tokens ``start..stop``, int64[stop - start].

    >>> kernel_slots(np.array([3, 7], np.int32), 64, 16, 20, 21)  # block 3 is kernel blocks 12 to 15
    array([212])
    """
    positions = np.arange(start, stop, dtype=np.int64)
    in_block = positions % block_size
    blocks = table[positions // block_size].astype(np.int64) * (block_size // kernel_block_size)
    return (blocks + in_block // kernel_block_size) * kernel_block_size + positions % kernel_block_size


def sizes_agree(spec: EngineSpec) -> Iterator[Violation]:
    """Yield every size that contradicts another: kernel, hash, and what stands among the effective values.

    A kernel's block divides the manager's. A hash unit divides the manager's block or is a multiple of it.
    An effective ``block_size`` is the size of a pool: one value everywhere (vllm-ascend #7630).
    """
    for pool in spec.pools:
        size, kernel, unit = pool.block_size, pool.kernel_block_size, pool.hash_block_size
        if kernel is not None and (kernel < 1 or size % kernel):
            yield _violation(
                pool, f"blocks of {size} tokens are cut into kernel blocks of {kernel}, expected a divisor"
            )
        if unit is not None and (unit < 1 or max(unit, size) % min(unit, size)):
            yield _violation(
                pool, f"keys stand for {unit} tokens in blocks of {size}, expected a divisor or a multiple"
            )
    told = spec.effective.get("block_size")
    if told is not None and spec.pools and told not in {pool.block_size for pool in spec.pools}:
        sizes = ", ".join(str(pool.block_size) for pool in spec.pools)
        yield _violation(
            spec.pools[0],
            f"block size {told} is in force, the pools have blocks of {sizes}: expected one size",
        )


def size_measured(pool: PoolSpec, entries: int, tokens: int) -> Iterator[Violation]:
    """Yield when the entries of a table are not those of the declared block size (vllm #51163)."""
    due = 1 if pool.kind is PoolKind.STATE else -(-tokens // pool.block_size)
    if entries != due:
        yield _violation(
            pool,
            f"a table of {entries} entries holds {tokens} tokens, expected {due} of the declared "
            f"{pool.block_size} tokens",
        )


def hit_unit(pools: Sequence[PoolSpec], prompt_tokens: int, hit_tokens: int) -> Iterator[Violation]:
    """Yield when a prompt that is cached whole is not found to its last full unit but for one token.

    ``hit = floor((n - 1) / unit) * unit`` (dynamo #5713: keys of another size than declared).
    """
    unit = hash_unit(pools)
    due = (prompt_tokens - 1) // unit * unit
    if hit_tokens != due:
        yield _violation(
            pools[0],
            f"{hit_tokens} of {prompt_tokens} cached tokens are found, expected {due}: keys stand for {unit} "
            "tokens each",
        )


def slots_mapped(
    pool: PoolSpec, table: Int32Array, first: int, slots: Int64Array, request_id: str
) -> Iterator[Violation]:
    """Yield when the kernel's slots of tokens ``first`` and after are not those of the sequence's blocks."""
    kernel = pool.kernel_block_size or pool.block_size
    due = kernel_slots(table, pool.block_size, kernel, first, first + len(slots))
    wrong = np.flatnonzero(slots != due)
    if len(wrong):
        at = int(wrong[0])
        block = int(table[(first + at) // pool.block_size])
        yield _violation(
            pool,
            f"token {first + at} of {request_id} lies in kernel slot {int(slots[at])}, expected "
            f"{int(due[at])}: block {block} of {pool.block_size} tokens in kernel blocks of {kernel} "
            f"({len(wrong)} tokens are wrong)",
        )


def slots_distinct(pool: PoolSpec, slots: Int64Array) -> Iterator[Violation]:
    """Yield when two tokens that share nothing lie in one slot, or one lies outside the pool."""
    ids, times = np.unique(slots, return_counts=True)
    if (times > 1).any():
        twice = int(ids[times > 1][0])
        yield _violation(pool, f"kernel slot {twice} holds {int(times.max())} tokens, expected one")
    end = pool.num_blocks * pool.block_size
    if len(ids) and not (ids[0] >= 0 and ids[-1] < end):
        yield _violation(
            pool, f"kernel slots are {int(ids[0])} to {int(ids[-1])}, the pool has 0 to {end - 1}"
        )


def difference_named(before: EngineSpec, after: EngineSpec) -> Iterator[Violation]:
    """Yield when two engines size their pools differently and no effective value says why (I18).

    A default that moves from 16 to 256 tokens makes each block 16 times as large (vllm #26905): that is a
    drift to be read, and it must stand among the effective values.
    """
    sizes = [[pool.pool_bytes for pool in spec.pools] for spec in (before, after)]
    if sizes[0] != sizes[1] and dict(before.effective) == dict(after.effective):
        yield Violation(
            "drift",
            None,
            str(after.pools[0].key),
            f"the pools take {sum(sizes[1])} bytes after {sum(sizes[0])} with the same effective values: "
            "name the one that changed",
        )


def kernel_size_kept(pools: Sequence[PoolSpec]) -> Iterator[Violation]:
    """Yield when a kernel's block size follows anything but the block size: it is no axis of a shape.

    ``pools`` are one pool of engines opened with the same block size and other heads (vllm #35125).
    """
    sizes = {pool.kernel_block_size or pool.block_size for pool in pools}
    if len(sizes) > 1:
        yield _violation(
            pools[0],
            f"kernel blocks of {sorted(sizes)} tokens for one block size, expected one for any heads",
        )


def _violation(pool: PoolSpec, message: str) -> Violation:
    return Violation(INVARIANT, None, str(pool.key), message)
