"""Groups of layers with block sizes of their own (I11): what each holds, what they cost together.

    full     ceil(n / b)
    window   ceil(n / b) - max(0, floor((settled - W + 1) / b)), at most ceil((W + c - 2) / b) + 1 with
             ``c`` tokens a step
    state    one, whatever the length

Bytes of a sequence follow ``a + c * n`` once it is past every window: ``a`` is what windows and states pin,
``c`` the bytes of the full layers (vllm #51041). A capacity is found by search and never by dividing.
"""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

from kvsuite.engine.snapshot import PoolKind
from kvsuite.ledger.invariants import Violation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from kvsuite.engine.snapshot import PoolKey, PoolSnapshot, PoolSpec

INVARIANT = "groups"


def blocks_held(pool: PoolSpec, tokens: int, settled: int) -> int:
    """Return the blocks that a sequence of ``tokens`` holds in a forward pass, ``settled`` of them before it.

    Source: I5; the window's share after vllm #47728.
    """
    if pool.kind is PoolKind.STATE:
        return 1
    return -(-tokens // pool.block_size) - blocks_let_go(pool, settled)


def blocks_let_go(pool: PoolSpec, settled: int) -> int:
    """Return the leading blocks that no token after the first ``settled`` looks at any more."""
    if pool.kind is not PoolKind.WINDOW or pool.window_tokens is None:
        return 0
    return max(0, (settled - pool.window_tokens + 1) // pool.block_size)


def blocks_demanded(pool: PoolSpec, tokens: int, step_tokens: int) -> int:
    """Return the most blocks a sequence holds on its way to ``tokens``, ``step_tokens`` at most a step.

    A step reads the ``W - 1`` tokens before it and writes its own: ``W - 1 + c`` in a row, wherever they
    begin in a block.

    >>> from kvsuite.engine.snapshot import PoolKey, PoolSpec
    >>> window = PoolSpec(PoolKey(), 2000, 16, 1, kind=PoolKind.WINDOW, window_tokens=2048)
    >>> blocks_demanded(window, 15_537, 16), -(-15_537 // 16)
    (130, 972)
    """
    if pool.kind is PoolKind.STATE:
        return 1
    whole = -(-tokens // pool.block_size)
    if pool.kind is PoolKind.FULL or pool.window_tokens is None:
        return whole
    span = pool.window_tokens - 1 + min(step_tokens, tokens)
    return min(whole, -(-(span - 1) // pool.block_size) + 1)


def holds(pools: Sequence[PoolSpec], lengths: Sequence[int], step_tokens: int) -> bool:
    """Return whether every pool has the blocks that sequences of ``lengths`` tokens demand together."""
    return all(
        sum(blocks_demanded(pool, tokens, step_tokens) for tokens in lengths) <= pool.usable_blocks
        for pool in pools
    )


def largest(fits: Callable[[int], bool], upper: int) -> int:
    """Return the largest number up to ``upper`` that fits, by bisection; 0 fits."""
    low, high = 0, upper + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def footprint_bytes(pools: Sequence[PoolSpec], tokens: int, settled: int) -> int:
    """Return the bytes of the blocks that one sequence holds in all groups together, pad included."""
    return sum(blocks_held(pool, tokens, settled) * pool.block_bytes for pool in pools)


def fixed_and_rate(shorter: tuple[int, int], longer: tuple[int, int]) -> tuple[Fraction, Fraction]:
    """Return ``a`` and ``c`` of ``bytes = a + c * n`` from two points ``(tokens, bytes)``.

    >>> fixed_and_rate((64, 1000), (128, 1640))
    (Fraction(360, 1), Fraction(10, 1))
    """
    rate = Fraction(longer[1] - shorter[1], longer[0] - shorter[0])
    return shorter[1] - rate * shorter[0], rate


def smallest_block_tokens(state_bytes: int, token_bytes: int, unit_tokens: int) -> int:
    """Return the smallest multiple of ``unit_tokens`` whose bytes hold a whole state.

    ``token_bytes`` counts keys *and* values (vllm-ascend #14543: keys alone double the block).

    >>> smallest_block_tokens(1024, 1, 16), smallest_block_tokens(1025, 1, 16)
    (1024, 1040)
    """
    return -(-state_bytes // (unit_tokens * token_bytes)) * unit_tokens


def counts(
    pools: Sequence[PoolSpec], held: Mapping[PoolKey, int], tokens: int, settled: int
) -> Iterator[Violation]:
    """Yield groups that hold another number of blocks for one sequence than is due."""
    for pool in pools:
        due = blocks_held(pool, tokens, settled)
        if held[pool.key] != due:
            yield _violation(
                pool,
                f"{held[pool.key]} blocks of {pool.block_size} hold a sequence of {tokens} tokens, {settled} "
                f"of them settled, expected {due} in a {pool.kind.value} group",
            )


def ids_in_pool(pools: Sequence[PoolSpec], snapshots: Sequence[PoolSnapshot]) -> Iterator[Violation]:
    """Yield groups whose tables name blocks that the declared pool does not have (sglang #17630)."""
    for pool, snapshot in zip(pools, snapshots, strict=True):
        ids = snapshot.table_blocks
        if len(ids) and (ids.min() < 0 or ids.max() >= pool.num_blocks):
            yield _violation(
                pool,
                f"tables name blocks {int(ids.min())} to {int(ids.max())}, the pool has 0 to "
                f"{pool.num_blocks - 1}",
            )


def minimal_page(attention: PoolSpec, state: PoolSpec, unit_tokens: int) -> Iterator[Violation]:
    """Yield when the page that a state shares with attention is larger than it must be.

    Allowed sizes are the multiples of ``unit_tokens``; ``pad = page - payload`` is then minimal. Pools
    whose pages differ share none and are not judged.
    """
    if attention.block_bytes != state.block_bytes:
        return
    payload = state.block_size * state.bytes_per_token
    due = smallest_block_tokens(payload, attention.bytes_per_token, unit_tokens)
    if attention.block_size != due or state.pad_bytes_per_block != due * attention.bytes_per_token - payload:
        yield _violation(
            state,
            f"a state of {payload} bytes lies in a block of {attention.block_size} tokens with "
            f"{state.pad_bytes_per_block} bytes of pad, expected {due} tokens and "
            f"{due * attention.bytes_per_token - payload} bytes",
        )


def refusal_needs(pool: PoolSpec, needed_blocks: int, tokens: int, step_tokens: int) -> Iterator[Violation]:
    """Yield when a refusal asks for more of a pool than the sequence can come to hold (vllm #55800)."""
    due = blocks_demanded(pool, tokens, step_tokens)
    if needed_blocks > due:
        yield _violation(
            pool,
            f"{needed_blocks} blocks are asked of a {pool.kind.value} group for {tokens} tokens in steps of "
            f"{step_tokens}, expected at most {due}",
        )


def capacity(
    pools: Sequence[PoolSpec],
    found: int,
    lengths: Callable[[int], Sequence[int]],
    step_tokens: int,
    upper: int,
) -> Iterator[Violation]:
    """Yield when the largest load found on the engine is not what its groups hold by their own arithmetic.

    ``lengths(load)`` says which sequences make up a load of that size.
    """
    due = largest(lambda load: holds(pools, lengths(load), step_tokens), upper)
    if found != due:
        told = ", ".join(f"{pool.usable_blocks} x {pool.block_size} {pool.kind.value}" for pool in pools)
        yield _violation(pools[0], f"a load of {found} is admitted, expected {due} in pools of {told}")


def never_smaller(wider: Sequence[PoolSpec], narrower: Sequence[PoolSpec], what: str) -> Iterator[Violation]:
    """Yield pools that shrank although a limit (longest sequence, window) was lowered."""
    for pool, other in zip(narrower, wider, strict=True):
        if pool.usable_blocks < other.usable_blocks:
            yield _violation(
                pool,
                f"{pool.usable_blocks} usable blocks after {other.usable_blocks} with a lower {what}, which "
                "never shrinks a pool",
            )


def states_private(pool: PoolSpec, snapshot: PoolSnapshot) -> Iterator[Violation]:
    """Yield states that two sequences hold: both go on writing them."""
    holders: dict[int, str] = {}
    for row, request_id in enumerate(snapshot.request_ids):
        for block in snapshot.table(row).tolist():
            other = holders.setdefault(block, request_id)
            if other != request_id:
                yield _violation(pool, f"{other} and {request_id} hold state {block}, expected one each")


def hits_reach(found: int, due: int, pools: Sequence[PoolSpec]) -> Iterator[Violation]:
    """Yield when groups together find less of a prompt than its full layers still hold (vllm #21017)."""
    if found < due:
        windows = [pool for pool in pools if pool.kind is PoolKind.WINDOW] or list(pools)
        yield _violation(windows[0], f"{found} tokens are found where full layers hold {due}")


def _violation(pool: PoolSpec, message: str) -> Violation:
    return Violation(INVARIANT, None, str(pool.key), message)
