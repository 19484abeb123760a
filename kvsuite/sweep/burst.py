"""How many samples may fork and diverge at once, at the step at which the pool is fullest.

A shared tail is copied when one of its holders writes: ``n`` samples that fork in one step take ``n``
blocks in the next, whatever they share. That is asked of a replay: samples are grafted onto the sequences
that decode at the fullest step, and the burst is borne when each of them forks and, where they diverge, no
sequence gives way or is refused growth that was not without them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kvsuite.record.decision_rows import BurstRow
from kvsuite.trace.samples import with_samples

if TYPE_CHECKING:
    from kvsuite.engine.snapshot import Int64Array
    from kvsuite.sweep.fullest import Rows, Stretch

_DISTRESS = ("fork_denied", "preempted", "refused_growths")


def largest_burst(stretch: Stretch) -> BurstRow | None:
    """Return the largest divergence burst that an option bears at the fullest step of its stretch.

    ``None`` where the engine does not fork: samples then queue, and nothing of that is a burst.
    """
    calm = stretch.rows()
    if not calm.forks:
        return None
    step = calm.fullest
    parents, lengths = _decoding(stretch, calm, step)
    spare = calm.pool.spec.usable_blocks - int(calm.column("live_blocks")[step])
    running = int(calm.column("running")[step])
    seats = stretch.cell.scheduler.max_sequences - running - int(calm.column("forked")[step])
    most = min(seats, _room(calm, step + 1)) if len(parents) else 0
    largest, refused, asked, copied = 0, most + 1, most, 0
    while refused - largest > 1:
        shaken = _burst(stretch, parents, lengths, asked)
        if _is_borne(calm, shaken, step):
            largest, copied = asked, _copied(shaken, step) - _copied(calm, step)
        else:
            refused = asked
        asked = (largest + refused) // 2
    return BurstRow(
        largest=largest,
        bound="no sequence to fork" if not len(parents) else "seats" if largest == seats else "blocks",
        spare_blocks=spare,
        running=running,
        copied_tokens=copied,
    )


def _room(calm: Rows, step: int) -> int:
    """Return the most blocks that a step may take: those that were given back since the one before too."""
    taken = calm.column("allocated")[step] + calm.column("reactivated")[step]
    return calm.pool.spec.usable_blocks - int(calm.column("live_blocks")[step] - taken)


def _decoding(stretch: Stretch, calm: Rows, step: int) -> tuple[Int64Array, Int64Array]:
    """Return the requests that write a token of their answer in a step and the next, and their lengths."""
    request, first, last = calm.clock.token_spans.T
    here = (first <= step) & (last > step)
    parents = request[here]
    written = np.bincount(
        request, (np.minimum(last, step) - first + 1).clip(min=0), minlength=len(stretch.trace)
    ).astype(np.int64)
    inherited = np.maximum(stretch.trace.fork_at, stretch.trace.prompt_tokens)
    return parents, inherited[parents] + written[parents]


def _burst(stretch: Stretch, parents: Int64Array, lengths: Int64Array, samples: int) -> Rows:
    takers = np.arange(samples) % len(parents)
    return stretch.rows(with_samples(stretch.trace, parents[takers], lengths[takers]))


def _is_borne(calm: Rows, shaken: Rows, step: int) -> bool:
    return all(
        int(shaken.column(name)[step : step + 2].sum()) <= int(calm.column(name)[step : step + 2].sum())
        for name in _DISTRESS
    )


def _copied(rows: Rows, step: int) -> int:
    return int(rows.column("copied")[step + 1])
