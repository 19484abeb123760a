"""Whether a prompt is let in, and whether an extension follows: checks that several adapters share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvsuite.engine.contract import Refusal, RefusalReason
from kvsuite.errors import EngineError

if TYPE_CHECKING:
    from kvsuite.engine.snapshot import PoolSpec
    from kvsuite.trace.model import RequestId
    from kvsuite.trace.tokens import TokenRun


@dataclass(frozen=True, slots=True)
class Demand:
    """What a prompt asks for and what there is, in blocks; an idle hit is no room for the prompt itself."""

    total: int
    """Blocks of the whole prompt, hits included."""
    hits: int
    idle_hits: int
    """Hits that no sequence holds."""
    free: int
    cached: int
    promised: int = 0
    """Blocks that prompts under way still need."""

    def refusal(self, pool: PoolSpec) -> Refusal | None:
        """Return why the prompt does not get in, ``None`` where it does."""
        needed, reclaimable = self.total - self.hits, self.cached - self.idle_hits
        spare = self.free + reclaimable - needed
        if self.total > pool.usable_blocks:
            reason = RefusalReason.NEVER_FITS
        elif spare < 0:
            reason = RefusalReason.NO_BLOCKS
        elif spare < self.promised:
            reason = RefusalReason.PROMISED
        else:
            return None
        return Refusal(needed, self.free, reclaimable, pool.key, reason)


def check_follows(request_id: RequestId, held_tokens: int, tokens: TokenRun, lookahead_tokens: int) -> None:
    """Check that ``tokens`` follow what a sequence has, and that no look-ahead is asked for.

    **Raises:** `EngineError`: the engine is driven against the contract.
    """
    if lookahead_tokens:
        raise EngineError(f"{request_id}: {lookahead_tokens} look-ahead tokens asked, none are claimed")
    if held_tokens != tokens.start:
        raise EngineError(
            f"{request_id} holds {held_tokens} tokens and is extended from {tokens.start}: tokens must "
            "follow what the sequence has"
        )
