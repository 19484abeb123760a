"""Engines with recurrent layers whose state is sized, shared or counted wrong."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kvsuite.engine.extensions.state import StateEngine
from kvsuite.engine.reference import ReferenceEngine
from kvsuite.mutants.table import mutant

if TYPE_CHECKING:
    from kvsuite.engine.contract import Admission
    from kvsuite.engine.snapshot import PoolSnapshot
    from kvsuite.trace.model import RequestId
    from kvsuite.trace.tokens import TokenRun


@mutant(
    "page-from-keys-alone",
    caught_by="groups",
    kind="GROUP",
    killer="conformance/test_group_cost.py::test_a_page_shared_with_a_state_is_no_larger_than_it_must_be",
    shown_by="a state in pages of the size of attention's",
)
class PageFromKeysAlone(StateEngine):
    """The block that must hold a state is sized by its keys, while its values fill the page as well."""

    @staticmethod
    def page_tokens(state_bytes: int, token_bytes: int, unit_tokens: int) -> int:
        """Count half of each token."""
        return StateEngine.page_tokens(state_bytes, token_bytes // 2, unit_tokens)


@mutant(
    "state-shared-by-a-fork",
    caught_by="groups",
    kind="GROUP",
    killer="conformance/test_group.py::test_a_state_is_one_block_and_nobody_elses",
    shown_by="a fork",
)
class StateSharedByAFork(StateEngine):
    """A fork and its parent go on writing one state."""

    def fork(self, parent_id: RequestId, child_id: RequestId) -> bool:
        """Share the state like any block."""
        ReferenceEngine.fork(self, parent_id, child_id)
        return self.states.fork(parent_id, child_id)


@mutant(
    "state-grows-with-its-sequence",
    caught_by="slack",
    kind="GROUP",
    killer="conformance/test_group.py::test_a_state_is_one_block_and_nobody_elses",
    shown_by="a prompt of more than one block",
)
class StateGrowsWithItsSequence(StateEngine):
    """A recurrent group takes a block for every block of attention."""

    def admit(
        self,
        request_id: RequestId,
        prompt: TokenRun,
        *,
        first_chunk_tokens: int,
        max_tokens: int | None = None,
    ) -> Admission:
        """Take more states than one."""
        admission = super().admit(
            request_id, prompt, first_chunk_tokens=first_chunk_tokens, max_tokens=max_tokens
        )
        if admission.accepted:
            blocks = len(self.cache.tables[request_id].blocks)
            if blocks > 1:
                self.states.cache.extend(request_id, blocks - 1)
        return admission

    def snapshot(self, since: int | None = None) -> tuple[PoolSnapshot, ...]:
        """Report each state with the length of one."""
        *attention, states = super().snapshot(since)
        return (*attention, replace(states, lengths=states.lengths * 0 + 1))
