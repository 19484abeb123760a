"""What the lengths of a trace say before anything is replayed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from kvsuite.engine.snapshot import Int64Array
    from kvsuite.trace.model import Trace


def longest_declared_tokens(trace: Trace) -> int:
    """Return the most tokens a request of ``trace`` may come to: prompt, and answer as declared."""
    declared = np.where(trace.max_output_tokens < 0, trace.output_tokens, trace.max_output_tokens)
    return int((trace.prompt_tokens + declared).max(initial=1))


def waits_for_an_answer(trace: Trace) -> bool:
    """Return whether any request asks for a token and is not cancelled by count before its last one."""
    stays = (trace.cancel_after < 0) | (trace.cancel_after >= trace.output_tokens)
    return bool(((trace.output_tokens > 0) & stays).any())


def static_slack_share(lengths: Int64Array, block_size: int) -> float:
    """Return slack over allocated with every sequence at its length: ``1 - sum n / sum (ceil(n / b) b)``.

    >>> static_slack_share(np.array([16, 17]), 16)
    0.3125
    """
    allocated = int((-(-lengths // block_size) * block_size).sum())
    return (allocated - int(lengths.sum())) / allocated if allocated else 0.0
