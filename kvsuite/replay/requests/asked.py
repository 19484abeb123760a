"""A trace as requests: what an engine that samples by itself can be asked for, and what is left out by name.

sample   a child at its parent's prompt     one more answer of the parent, as long as the parent's
spawn    a child that shares nothing        a request of its own, once the parent answers
beam     a child of generated tokens        dropped: nobody but the engine could fork it
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvsuite.trace.model import ForkKind

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvsuite.trace.model import Request, Trace

BEAM = "a child of generated tokens, which only the engine could fork"
ONE_ANSWER = "one more answer, where the engine gives one answer a request"
ORPHAN = "a child of a child that is not asked for as a request"
NO_TOKEN = "an answer of no token, made one token long"
LENGTH = "one more answer, made as long as its parent's"
ANSWER_LEAVES = "the cancellation of one answer of several"
UNSEEN = "a cancellation after so many tokens, where the tokens cannot be seen"


@dataclass(frozen=True, slots=True)
class AskedRequest:
    """One request to be submitted; ``spawned_by`` is the index of the request that must answer first."""

    request: Request
    num_answers: int = 1
    spawned_by: int | None = None

    @property
    def max_tokens(self) -> int:
        """Tokens asked for in each answer: 1 or more."""
        return max(1, self.request.output_tokens)

    @property
    def final_tokens(self) -> int:
        """Tokens of prompt and one answer."""
        return self.request.prompt_tokens + self.max_tokens


@dataclass(frozen=True, slots=True)
class AskedTrace:
    """A trace as it is asked of the engine.

    ``changed`` and ``dropped`` count, by reason, what the engine was asked otherwise than the trace says, and
    what it was not asked at all.
    """

    requests: tuple[AskedRequest, ...]
    changed: Mapping[str, int]
    dropped: Mapping[str, int]


def asked_trace(trace: Trace, *, samples: bool) -> AskedTrace:
    """Return ``trace`` as requests; ``samples``: the engine gives several answers to one request."""
    changed: Counter[str] = Counter()
    dropped: Counter[str] = Counter()
    answers: Counter[int] = Counter()
    carrier: dict[int, int] = {}
    """The request that each row became a part of."""
    spawned: dict[int, int] = {}
    for request in trace:
        if request.parent is None:
            carrier[request.index] = request.index
            continue
        parent = carrier.get(request.parent)
        if parent is None:
            dropped[ORPHAN] += 1
        elif request.fork_kind is ForkKind.SPAWN:
            carrier[request.index] = request.index
            spawned[request.index] = parent
        elif request.fork_at != trace[request.parent].prompt_tokens:
            dropped[BEAM] += 1
        elif not samples:
            dropped[ONE_ANSWER] += 1
        elif parent != request.parent:
            dropped[ORPHAN] += 1
        else:
            answers[parent] += 1
            changed[LENGTH] += request.output_tokens != trace[parent].output_tokens
            leaves = request.cancel_after is not None or request.cancel_at_us is not None
            dropped[ANSWER_LEAVES] += leaves
            carrier[request.index] = parent
    requests = tuple(
        AskedRequest(trace[index], 1 + answers[index], spawned.get(index))
        for index, own in carrier.items()
        if own == index
    )
    changed[NO_TOKEN] += sum(asked.request.output_tokens == 0 for asked in requests)
    return AskedTrace(requests, +changed, +dropped)
