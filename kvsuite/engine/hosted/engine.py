"""An engine in another process, as the contract asks for it: every verb is a question to its host."""

from __future__ import annotations

import weakref
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from kvsuite.engine.contract import Capability
from kvsuite.engine.hosted.process import HostProcess, host_of

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Mapping
    from pathlib import Path

    from kvsuite.engine.config import EngineConfig
    from kvsuite.engine.contract import Admission, EngineSpec, Ops, Release
    from kvsuite.engine.requests import Observation
    from kvsuite.engine.snapshot import PoolSnapshot
    from kvsuite.trace.model import RequestId, Trace
    from kvsuite.trace.tokens import TokenRun

CAPABILITY_VERBS = (
    *("fork", "memory", "gauges", "budget", "transfer_done", "tick", "forget"),
    *("read_slots", "write_slots", "reset_cache"),
)


@dataclass(frozen=True, slots=True)
class Line:
    """Leads to one engine in a host; verbs hold this and not the engine, which so dies when it is let go."""

    host: HostProcess
    key: int
    name: str

    def ask(self, verb: str, *arguments: Any, **options: Any) -> Any:
        """Return the engine's answer to one verb."""
        said = f"ask engine {self.name!r} for {verb}"
        return self.host.ask(said, "ask", self.key, verb, arguments, options)


def open_hosted(python: Path, factory: str, config: EngineConfig) -> HostedEngine | HostedRequestEngine:
    """Return the engine that ``factory`` makes in the interpreter ``python``.

    ``factory`` is a name that the registry knows there, or ``MODULE:CLASS``, or ``FILE.py:CLASS``.

    **Raises:** `EngineError` where the process fails or the engine breaks the contract; `ConfigError` for a
    configuration that the engine refuses.
    """
    host = host_of(python)
    if config.trace is not None:
        host.know(config.trace)
    key = host.new_key()
    asked = replace(config, trace=None)
    spec, verbs = host.ask(f"open engine {factory!r}", "open", key, factory, asked, config.trace is not None)
    kind = HostedRequestEngine if spec.claims(Capability.REQUEST_DRIVEN) else HostedEngine
    return kind(Line(host, key, spec.name), spec, verbs)


class _Hosted:
    """What every engine in a host has; it ends with this object, its process does not."""

    def __init__(self, line: Line, spec: EngineSpec, verbs: Iterable[str]) -> None:
        self._line = line
        self._spec = spec
        weakref.finalize(self, line.host.drop, line.key)
        for verb in verbs:
            # In the instance, where `isinstance` looks for the verbs of a protocol.
            vars(self)[verb] = partial(line.ask, verb)

    @property
    def spec(self) -> EngineSpec:
        """Who the engine is and what it claims, as it said when it was opened."""
        return self._spec

    @property
    def host(self) -> HostProcess:
        """The process it lives in."""
        return self._line.host


class HostedEngine(_Hosted):
    """An engine in another process; of the verbs of capabilities it has those that the engine has."""

    def admit(
        self,
        request_id: RequestId,
        prompt: TokenRun,
        *,
        first_chunk_tokens: int,
        max_tokens: int | None = None,
    ) -> Admission:
        """Take a sequence in, or refuse it and change nothing."""
        options = {"first_chunk_tokens": first_chunk_tokens, "max_tokens": max_tokens}
        answer: Admission = self._line.ask("admit", request_id, prompt, **options)
        return answer

    def extend(self, request_id: RequestId, tokens: TokenRun, *, lookahead_tokens: int = 0) -> bool:
        """Take slots for ``tokens``, which follow what the sequence has; all or nothing."""
        done: bool = self._line.ask("extend", request_id, tokens, lookahead_tokens=lookahead_tokens)
        return done

    def release(self, request_id: RequestId, reason: Release) -> None:
        """Give back what the sequence holds."""
        self._line.ask("release", request_id, reason)

    def take_ops(self) -> Ops:
        """Return, once, the copies and zeroing to be done before this step's writes."""
        ops: Ops = self._line.ask("take_ops")
        return ops

    def launched(self, step: int) -> None:
        """Learn that this step's reads and writes are under way."""
        self._line.ask("launched", step)

    def done(self, step: int, accepted: Mapping[RequestId, int]) -> None:
        """Learn that the step is settled."""
        self._line.ask("done", step, dict(accepted))

    def snapshot(self, since: int | None = None) -> tuple[PoolSnapshot, ...]:
        """Return every pool as it stands."""
        shots: tuple[PoolSnapshot, ...] = self._line.ask("snapshot", since)
        return shots

    def replay_parts(self, trace: Trace, scheduler: object, *, read_all: bool) -> Generator[Any]:
        """Yield the packed parts of a whole replay, which runs beside the engine."""
        host, said = self._line.host, f"replay on engine {self._line.name!r}"
        host.know(trace)
        yield from host.stream(said, "replay", self._line.key, scheduler, read_all)


class HostedRequestEngine(_Hosted):
    """An engine in another process that schedules and samples by itself."""

    def submit(
        self, request_id: RequestId, prompt: TokenRun, *, max_tokens: int, num_answers: int = 1
    ) -> None:
        """Hand a request over."""
        self._line.ask("submit", request_id, prompt, max_tokens=max_tokens, num_answers=num_answers)

    def cancel(self, request_id: RequestId) -> None:
        """Say that the client went away."""
        self._line.ask("cancel", request_id)

    def step(self) -> None:
        """Let the engine run one step."""
        self._line.ask("step")

    def observe(self) -> Observation:
        """Return what can be seen now."""
        seen: Observation = self._line.ask("observe")
        return seen
