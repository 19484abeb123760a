"""Stands between the suite and a request-driven engine: a crash is named, every answer has its form."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kvsuite.engine.contract import Release
from kvsuite.engine.requests import Observation, PoolCounts
from kvsuite.engine.snapshot import PoolSnapshot
from kvsuite.engine.spec_checks import is_a, spec_of, whole
from kvsuite.errors import EngineError, KvsuiteError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvsuite.engine.contract import EngineSpec
    from kvsuite.engine.requests import RequestEngine
    from kvsuite.trace.model import RequestId
    from kvsuite.trace.tokens import TokenRun

_NUMBERS = ("used_blocks", "free_blocks", "total_blocks", "pool_bytes")


class GuardedRequestEngine:
    """A request-driven engine as the suite drives it; ``step_number`` stands in every error.

    **Raises:** `EngineError` for an exception of the engine, and for an answer that is none by the contract.
    """

    def __init__(self, engine: RequestEngine) -> None:
        self.step_number: int | None = None
        self._engine = engine
        self._spec = spec_of(engine)
        self._keys = [pool.key for pool in self._spec.pools]
        self._answers: dict[RequestId, int] = {}
        """Requests that were submitted and did not end yet, and the answers each asked for."""

    @property
    def spec(self) -> EngineSpec:
        """Who the engine is and what it claims, as it said when it was opened."""
        return self._spec

    def check_spec_is_constant(self) -> None:
        """Check that the engine still says the same of itself.

        **Raises:** `EngineError` when it does not.
        """
        spec = spec_of(self._engine)
        if spec != self._spec:
            raise EngineError(
                f"engine {self._spec.name!r} changed its spec while it ran, from {self._spec} to {spec}: "
                "the spec of an engine is constant"
            )

    def submit(
        self, request_id: RequestId, prompt: TokenRun, *, max_tokens: int, num_answers: int = 1
    ) -> None:
        """Hand a request over."""
        self._answers[request_id] = num_answers
        self._ask("submit", request_id, prompt, max_tokens=max_tokens, num_answers=num_answers)

    def cancel(self, request_id: RequestId) -> None:
        """Say that the client went away."""
        self._ask("cancel", request_id)

    def step(self) -> None:
        """Let the engine run one step."""
        self._ask("step")

    def observe(self) -> Observation:
        """Return what can be seen; the arrays of snapshots are checked where they are taken in."""
        seen: Observation = self._ask("observe")
        for found, expected in self._faults(seen):
            raise EngineError(
                f"engine {self._spec.name!r} answered observe{self._when()} with {found[:200]}, "
                f"expected {expected}"
            )
        for request_id in (*seen.finished, *seen.refused):
            del self._answers[request_id]
        return seen

    def _ask(self, verb: str, *arguments: Any, **options: Any) -> Any:
        try:
            return getattr(self._engine, verb)(*arguments, **options)
        except (KvsuiteError, MemoryError):
            raise
        except (Exception, SystemExit) as error:
            of = f" of {arguments[0]}" if arguments else ""
            said = f": {error}" if str(error) else ""
            raise EngineError(
                f"engine {self._spec.name!r} raised {type(error).__name__} in {verb}{of}{self._when()}{said}"
            ) from error

    def _when(self) -> str:
        return "" if self.step_number is None else f" at step {self.step_number}"

    def _faults(self, seen: object) -> Iterator[tuple[str, str]]:
        if not isinstance(seen, Observation):
            yield repr(seen), "an Observation"
            return
        maps = (seen.finished, seen.refused, seen.generated)
        if not all(is_a(part, Mapping) for part in maps):
            yield repr(maps), "mappings of request ids as finished, refused and generated"
            return
        if seen.running is not None and not is_a(seen.running, tuple):
            yield f"running {seen.running!r}", "a tuple of request ids, or None where they cannot be seen"
            return
        yield from self._request_faults(seen)
        yield from self._pool_faults(seen)

    def _request_faults(self, seen: Observation) -> Iterator[tuple[str, str]]:
        both = seen.finished.keys() & seen.refused.keys()
        if both:
            yield f"{min(both)} both finished and refused", "one end of each request"
        for part in ("running", "finished", "refused", "generated"):
            for request_id in getattr(seen, part) or ():
                if request_id not in self._answers:
                    yield f"{request_id!r} in {part}", "requests that were submitted and have not ended"
        for request_id, how in seen.finished.items():
            if not is_a(how, Release):
                yield f"finished[{request_id!r}] {how!r}", "a Release"
        for request_id, tokens in seen.generated.items():
            wanted = self._answers.get(request_id)
            if not (is_a(tokens, tuple) and len(tokens) == wanted and all(map(_natural, tokens))):
                yield f"generated[{request_id!r}] {tokens!r}", f"a tuple of {wanted} token counts"

    def _pool_faults(self, seen: Observation) -> Iterator[tuple[str, str]]:
        if not is_a(seen.snapshots, tuple) or not all(is_a(shot, PoolSnapshot) for shot in seen.snapshots):
            yield f"snapshots {seen.snapshots!r}", "a tuple of PoolSnapshot"
            return
        if seen.snapshots and [shot.key for shot in seen.snapshots] != self._keys:
            yield f"snapshots of {[str(shot.key) for shot in seen.snapshots]}", "every pool of the spec"
        if any(shot.since is not None for shot in seen.snapshots):
            yield "a snapshot of changes", "full snapshots"
        if not is_a(seen.counts, tuple) or not all(is_a(counts, PoolCounts) for counts in seen.counts):
            yield f"counts {seen.counts!r}", "a tuple of PoolCounts"
            return
        for counts in seen.counts:
            if counts.key not in self._keys:
                yield f"counts of pool {counts.key}", "a pool of the spec"
            for name in _NUMBERS:
                value = getattr(counts, name)
                if value is not None and not whole(value):
                    yield f"{name} {value!r} of pool {counts.key}", "an int, or None where it cannot be seen"
        if seen.num_running is not None and not whole(seen.num_running):
            yield f"num_running {seen.num_running!r}", "an int, or None where it cannot be seen"


def _natural(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
