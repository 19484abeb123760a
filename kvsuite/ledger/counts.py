"""How many blocks a sequence holds (I5), and what follows at the edges of a block and of a pool.

Numbers in brackets are the usual names of these invariants in kvsuite's fault catalogue:

    count      (I5)  a table has ceil(min(n + k, Lmax) / b) entries
    tail       (I5)  (blocks - 1) * b + last = n, with 1 <= last <= b
    monotone   (I5)  more look-ahead never takes fewer blocks
    progress   (I9)  with nothing running, what fits is taken, and what can never fit is told so at once
    capacity  (I11)  the longest sequence found by search is the longest one declared
    window     (I5)  an unaligned window of W tokens touches at most ceil(W / b) + 1 blocks
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from kvsuite.engine.contract import RefusalReason
from kvsuite.engine.snapshot import PoolKind
from kvsuite.ledger.invariants import Violation, raise_violations

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from kvsuite.engine.contract import Admission, EngineSpec
    from kvsuite.engine.snapshot import PoolSnapshot, PoolSpec
    from kvsuite.trace.model import RequestId


def entries_due(
    spec: PoolSpec, length: int, *, lookahead_tokens: int = 0, max_tokens: int | None = None
) -> int:
    """Return the table entries of a sequence of ``length`` tokens: ``ceil(min(n + k, Lmax) / b)``.

    Entries that a window has let go are counted: they stand in the table as null ids. A recurrent state is
    one block whatever the length, and a ring has room for its window. Formula: vllm `FullAttentionManager`,
    and the clamp of vllm-ascend #9139.
    """
    if spec.kind is PoolKind.STATE:
        return 1
    if spec.kind is PoolKind.RING and spec.window_tokens is not None:
        return -(-min(length + lookahead_tokens, spec.window_tokens) // spec.block_size)
    reach = length + lookahead_tokens
    if max_tokens is not None:
        reach = max(length, min(reach, max_tokens))
    return -(-reach // spec.block_size)


def table_counts(
    spec: PoolSpec,
    snapshot: PoolSnapshot,
    step: int | None = None,
    *,
    lookahead: Mapping[RequestId, int] | None = None,
    max_tokens: int | None = None,
) -> Iterator[Violation]:
    """Yield sequences whose table is not exactly as long as is due (I5); needs a full snapshot.

    ``lookahead`` is what each sequence asked for in the step under way; none where it does not stand.
    """
    for row, request_id in enumerate(snapshot.request_ids):
        length, ahead = int(snapshot.lengths[row]), (lookahead or {}).get(request_id, 0)
        due = entries_due(spec, length, lookahead_tokens=ahead, max_tokens=max_tokens)
        found = len(snapshot.table(row))
        if found != due:
            yield Violation(
                "count",
                step,
                str(spec.key),
                f"{request_id} holds {found} blocks for {length} tokens and {ahead} ahead, expected {due} of "
                f"{spec.block_size} tokens" + ("" if max_tokens is None else f" within {max_tokens}"),
            )


def judge_counts(
    pools: Sequence[PoolSpec],
    snapshots: Sequence[PoolSnapshot],
    *,
    lookahead: Mapping[RequestId, int] | None = None,
    max_tokens: int | None = None,
) -> None:
    """Judge every table of every device pool by `table_counts`, and by `tails` where nothing is ahead.

    **Raises:** `InvariantViolation` with the first few.
    """
    found: list[Violation] = []
    for spec, snapshot in zip(pools, snapshots, strict=True):
        if spec.key.tier == "device":
            found += table_counts(spec, snapshot, lookahead=lookahead, max_tokens=max_tokens)
            if not lookahead and spec.kind not in {PoolKind.STATE, PoolKind.RING}:
                found += tails(spec, snapshot)
    raise_violations(found)


def tails(spec: PoolSpec, snapshot: PoolSnapshot, step: int | None = None) -> Iterator[Violation]:
    """Yield sequences without look-ahead for which ``(blocks - 1) * b + last = n`` has no ``1 <= last <= b``.

    A kernel that is given whole tables reads that many tokens (pegainfer #350).
    """
    for row, request_id in enumerate(snapshot.request_ids):
        blocks, length = len(snapshot.table(row)), int(snapshot.lengths[row])
        last = length - (blocks - 1) * spec.block_size
        if not 1 <= last <= spec.block_size:
            yield Violation(
                "tail",
                step,
                str(spec.key),
                f"{request_id} holds {length} tokens in {blocks} blocks: its last block would hold {last}, "
                f"expected 1 to {spec.block_size}",
            )


def monotone_in_lookahead(spec: PoolSpec, blocks: Mapping[int, int]) -> Iterator[Violation]:
    """Yield look-aheads that took fewer blocks than a smaller one; ``blocks`` by look-ahead, one length."""
    for (less, before), (more, after) in pairwise(sorted(blocks.items())):
        if after < before:
            yield Violation(
                "monotone",
                None,
                str(spec.key),
                f"a look-ahead of {more} tokens took {after} blocks, one of {less} took {before}",
            )


def kept_back(spec: EngineSpec) -> int:
    """Return the blocks that admission leaves to those that run: the effective value ``watermark_blocks``.

    An engine may waive it while nothing runs; one that does not can never admit what needs them.
    """
    kept = spec.effective.get("watermark_blocks", 0)
    return kept if isinstance(kept, int) else 0


def fits_empty_pool(
    pools: Sequence[PoolSpec],
    tokens: int,
    *,
    lookahead_tokens: int = 0,
    max_tokens: int | None = None,
) -> bool | None:
    """Return whether a sequence fits pools that are empty; ``None`` where a window may yet let it in.

    ``need <= N - |never allocatable|`` for every pool on the device (vllm #47272).
    """
    answer: bool | None = True
    for spec in pools:
        if spec.key.tier != "device":
            continue
        due = entries_due(spec, tokens, lookahead_tokens=lookahead_tokens, max_tokens=max_tokens)
        if due > spec.usable_blocks:
            if spec.kind is not PoolKind.WINDOW:
                return False
            answer = None
    return answer


def empty_pool_verdict(pools: Sequence[PoolSpec], tokens: int, admission: Admission) -> Iterator[Violation]:
    """Yield when an engine with nothing running gave a prompt the wrong verdict (I9).

    What fits is admitted. What can never fit is refused with `RefusalReason.NEVER_FITS`: any other reason
    leaves it waiting for ever.
    """
    fits = fits_empty_pool(pools, tokens)
    refusal = admission.refusal
    usable = ", ".join(f"{spec.usable_blocks} of {spec.block_size}" for spec in pools)
    offer = f"{tokens} tokens, offered to an empty pool of {usable} usable blocks,"
    if refusal is None:
        if fits is False:
            yield Violation("progress", None, str(pools[0].key), f"{offer} were admitted and can never fit")
    elif fits is True:
        yield Violation(
            "progress",
            None,
            str(refusal.pool),
            f"{offer} fit and were refused ({refusal.reason.value}: needs {refusal.needed_blocks} blocks, "
            f"{refusal.free_blocks} free)",
        )
    elif refusal.reason is not RefusalReason.NEVER_FITS:
        yield Violation(
            "progress",
            None,
            str(refusal.pool),
            f"{offer} can never fit and were refused as {refusal.reason.value}, expected never_fits: "
            "they would wait for ever",
        )


def longest_sequence(pool: str, found_tokens: int, declared_tokens: int) -> Iterator[Violation]:
    """Yield when the longest sequence found by search is not the longest one declared (I11)."""
    if found_tokens != declared_tokens:
        yield Violation(
            "capacity",
            None,
            pool,
            f"a sequence alone came to {found_tokens} tokens, expected the {declared_tokens} declared",
        )


def window_blocks_bound(window_tokens: int, block_size: int) -> int:
    """Return the most blocks that a window touches wherever it begins: ``ceil(W / b) + 1`` (vllm #48959)."""
    return -(-window_tokens // block_size) + 1


def window_blocks(spec: PoolSpec, snapshot: PoolSnapshot, step: int | None = None) -> Iterator[Violation]:
    """Yield sequences of a window pool that hold more blocks than one token in flight can need."""
    assert spec.window_tokens is not None
    bound = window_blocks_bound(spec.window_tokens, spec.block_size)
    for row, request_id in enumerate(snapshot.request_ids):
        held = int(np.count_nonzero(~np.isin(snapshot.table(row), snapshot.null_ids)))
        if held > bound:
            yield Violation(
                "window",
                step,
                str(spec.key),
                f"{request_id} holds {held} blocks of {spec.block_size} tokens, a window of "
                f"{spec.window_tokens} touches at most {bound}",
            )
