"""SGLang's allocator misused through the adapter: it takes back what is not out, and says nothing.

Loaded by the host from this file, in SGLang's interpreter.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsuite.engine.adapters.sglang import SglangEngine

if TYPE_CHECKING:
    from kvsuite.engine.contract import Release
    from kvsuite.trace.request import RequestId


class DoubleFree(SglangEngine):
    """Gives the pages of a request back twice."""

    def release(self, request_id: RequestId, reason: Release) -> None:
        """Release, and free the same slots once more."""
        (slots,) = self.read_slots(request_id)
        super().release(request_id, reason)
        self.allocator.free(self._package.torch.from_numpy(slots))


class UseAfterFree(SglangEngine):
    """Gives the pages of a request back and lets it go on."""

    def launched(self, step: int) -> None:
        """Launch, and free the oldest request's slots at step 1."""
        super().launched(step)
        if step == 1:
            (slots,) = self.read_slots(next(iter(self._live)))
            self.allocator.free(self._package.torch.from_numpy(slots))
