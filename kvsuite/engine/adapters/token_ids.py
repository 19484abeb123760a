"""Token ids for engines that compare them: one id for each content, so that no two contents look alike."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvsuite.engine.snapshot import Int64Array
    from kvsuite.trace.tokens import TokenRun

VOCABULARY = 2**62
"""As many ids as `TokenRun.token_ids` can tell apart."""


def ids_of(tokens: TokenRun) -> Int64Array:
    """Return the ids of a run, int64[len]."""
    return tokens.token_ids(VOCABULARY)
