"""Two page managers with one fault each, to see what kvsuite says of them."""

from __future__ import annotations

from toypages.adapter import ToyPages
from toypages.pages import PageManager


class LeakyManager(PageManager):
    """Forgets the last page of a stream that closes with a part-full one."""

    def close(self, name: str) -> None:
        """End a stream, but for a part-full last page."""
        stream = self.streams[name]
        if stream.filled % self.page_tokens:
            stream.pages.pop()
        super().close(name)


class LateManager(PageManager):
    """Takes a new page one token too late."""

    def pages_for(self, tokens: int) -> int:
        """Return how many pages ``tokens`` tokens need, less one where a page was just begun."""
        return max(1, super().pages_for(tokens - 1))

    def seal(self, name: str, filled: int) -> None:
        """Learn what is written, as far as there are pages."""
        super().seal(name, min(filled, len(self.streams[name].pages) * self.page_tokens))


class LeakyToyPages(ToyPages):
    """A faulty toy engine: a part-full last page is never given back."""

    name = "toypages-leaky"
    manager_type = LeakyManager


class LateToyPages(ToyPages):
    """A faulty toy engine: each new page comes one token late."""

    name = "toypages-late-block"
    manager_type = LateManager
