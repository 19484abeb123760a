"""What a scene asks for: prompts by name, which share what a case says they share, and bare requests."""

from __future__ import annotations

from kvsuite.trace.model import Request, RequestId
from kvsuite.trace.tokens import TokenContent


class Prompts:
    """Names for content: equal names after equal names are equal tokens.

    >>> prompts = Prompts()
    >>> one = prompts.of(("system", 32), ("question", 8))
    >>> two = prompts.of(("system", 32), ("other", 8))
    >>> one.prefix_key(32) == two.prefix_key(32), one.prefix_key(33) == two.prefix_key(33)
    (True, False)
    """

    def __init__(self) -> None:
        self._keys: dict[tuple[int, str], int] = {}

    def of(self, *parts: tuple[str, int]) -> TokenContent:
        """Return content made of named parts of given lengths; the last one goes on for ever."""
        keys: list[int] = []
        ends: list[int] = []
        for name, length in parts:
            parent = keys[-1] if keys else -1
            keys.append(self._keys.setdefault((parent, name), len(self._keys)))
            ends.append((ends[-1] if ends else 0) + length)
        return TokenContent(tuple(keys), tuple(ends[:-1]))


def request_of(name: str, tokens: int, index: int) -> Request:
    """Return a request of ``tokens`` prompt tokens that nobody cancels, forks or limits."""
    return Request(
        index=index,
        request_id=RequestId(name),
        arrival_us=0,
        prompt_tokens=tokens,
        output_tokens=0,
        max_output_tokens=None,
        parent=None,
        fork_kind=None,
        fork_at=None,
        cancel_after=None,
        cancel_at_us=None,
        session=None,
        turn=None,
        priority=0,
    )
