"""Copies that an engine makes in tensors of its own, where no operation tells of them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kvsuite.engine.contract import NO_OPS, Ops
from kvsuite.engine.extensions.own_tensors import OwnTensorsEngine
from kvsuite.mutants.table import mutant

if TYPE_CHECKING:
    from kvsuite.cache.paged import Copy

_FORKS = "conformance/test_copy_on_write.py::test_all_diverge_in_one_step"


@mutant(
    "own-copy-forgotten",
    caught_by="content",
    shown_by="a fork that diverges inside a block",
    kind="SHARE",
    killer=_FORKS,
)
class OwnCopyForgotten(OwnTensorsEngine):
    """A writer is moved to a private block in its own tensors, and nothing is copied there."""

    def take_ops(self) -> Ops:
        """Forget the copies."""
        self.cache.take_copies()
        return NO_OPS


@mutant(
    "own-copy-one-short",
    caught_by="content",
    shown_by="a fork that diverges inside a block",
    kind="SHARE",
    killer=_FORKS,
)
class OwnCopyOneShort(OwnTensorsEngine):
    """The last token before the write is left behind by a copy inside the engine's own tensors."""

    def copy(self, copy: Copy) -> None:
        """Copy one token less."""
        super().copy(replace(copy, num_tokens=copy.num_tokens - 1))


@mutant(
    "own-copy-elsewhere",
    caught_by="content",
    shown_by="two children that write in the same step",
    kind="SHARE",
    killer=_FORKS,
)
class OwnCopyElsewhere(OwnTensorsEngine):
    """Every copy of a step goes to the block of its first one."""

    def take_ops(self) -> Ops:
        """Copy to one block."""
        copies = self.cache.take_copies()
        for copy in copies:
            self.copy(replace(copy, target=copies[0].target))
        return NO_OPS


@mutant(
    "own-copy-of-keys-alone",
    caught_by="content",
    shown_by="a fork that diverges inside a block",
    kind="SHARE",
    killer=_FORKS,
)
class OwnCopyOfKeysAlone(OwnTensorsEngine):
    """A copy moves the keys of a block and leaves the values behind."""

    def copy(self, copy: Copy) -> None:
        """Copy one of the two tensors."""
        self._copy_in(self.keys, copy)
