"""Laws of single sequences: their lengths, their tables, their windows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kvsuite.engine.snapshot import PoolKind
from kvsuite.ledger.invariants import Violation, slack_outside_bound, tail_slack_bound

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from kvsuite.engine.snapshot import Int32Array, Int64Array, PoolSnapshot, PoolSpec
    from kvsuite.trace.model import RequestId


def given_lengths(
    spec: PoolSpec,
    order: Sequence[RequestId],
    lengths: Int64Array,
    given_ids: list[RequestId],
    given: list[int],
    step: int,
) -> Iterator[Violation]:
    """Yield sequences that are not shown with the tokens they were given, or should not be there at all."""
    if spec.kind is PoolKind.STATE:
        given = [spec.block_size] * len(given_ids)
    if list(order) == given_ids and lengths.tolist() == given:
        return
    expected = dict(zip(given_ids, given, strict=True))
    found = dict(zip(order, lengths.tolist(), strict=True))
    for request_id in sorted(expected.keys() | found.keys()):
        if expected.get(request_id) != found.get(request_id):
            message = (
                f"{request_id} is shown with {found.get(request_id, 'no')} tokens, "
                f"expected {expected.get(request_id, 'none: it is not running')}"
            )
            yield Violation("lengths", step, str(spec.key), message)


def table_slack(
    spec: PoolSpec, snapshot: PoolSnapshot, held_blocks: Int64Array, step: int
) -> Iterator[Violation]:
    """Yield sequences of a paged pool whose table breaks ``0 <= slack <= b - 1 + k``."""
    if spec.contiguous:
        return
    held, stored = held_blocks * spec.block_size, spec.stored_tokens(snapshot.lengths)
    ahead = snapshot.lookahead_tokens
    for row in slack_outside_bound(stored, held, spec.block_size, ahead).tolist():
        slack = int(held[row] - stored[row])
        message = (
            f"{snapshot.request_ids[row]} holds {int(stored[row])} tokens in {int(held[row])} "
            f"slots: slack {slack}, expected 0 to {tail_slack_bound(spec.block_size, ahead)}"
        )
        yield Violation("slack", step, str(spec.key), message)


def window_dropped(
    spec: PoolSpec,
    tables: Mapping[RequestId, Int32Array],
    null_ids: Int32Array,
    settled: Mapping[RequestId, int],
    hits: Mapping[RequestId, int],
    step: int,
) -> Iterator[Violation]:
    """Yield sequences whose window has let go of too little, too much, or the wrong blocks.

    ``dropped = max(0, floor((n_done - W + 1) / b))`` leading blocks, with ``n_done`` the settled length:
    tokens in flight and drafts may yet be taken back (vllm #47728). ``hits`` are the tokens found for those
    admitted in this step: an engine may count them as done at once, and never hold what lies before the
    window.
    """
    assert spec.window_tokens is not None
    for request_id, blocks in tables.items():
        done = settled.get(request_id, 0)
        due = max(0, (done - spec.window_tokens + 1) // spec.block_size)
        most = max(due, (hits.get(request_id, 0) - spec.window_tokens + 1) // spec.block_size)
        null = np.isin(blocks, null_ids)
        gone = int(null.sum())
        if not (due <= gone <= most and null[:gone].all()):
            message = (
                f"{request_id} has let go of {gone} of its {len(blocks)} blocks with {done} "
                f"tokens settled, expected the first {due}: a window of {spec.window_tokens} needs the others"
            )
            yield Violation("window", step, str(spec.key), message)
