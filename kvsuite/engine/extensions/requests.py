"""A request-driven engine over the reference: it schedules and samples by itself, and shows its pool.

First come, first served. One step decodes every running answer, oldest first, then goes on with prompts under
way, then admits. Where a block is missing the youngest running request gives way and is computed again.

    r1 (2 answers)   prompt ........ fork  r1    r1/1     both decode; r1 ends when both are done
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from kvsuite.engine.contract import Capability, Observation, RefusalReason, Release
from kvsuite.engine.reference import ReferenceEngine
from kvsuite.errors import ConfigError, EngineError
from kvsuite.trace.model import RequestId
from kvsuite.trace.tokens import TokenRun

if TYPE_CHECKING:
    from kvsuite.engine.config import EngineConfig
    from kvsuite.engine.contract import EngineSpec
    from kvsuite.trace.tokens import TokenContent

_LIMITS = {"max_sequences": 256, "max_step_tokens": 8192}
_PRIVATE_KEYS = 1 << 29
"""Segment keys of sampled tokens: above those a trace hands out, and their prefix keys fit 64 bits."""


@dataclass(slots=True)
class Answer:
    """One sequence: ``target`` tokens are to be computed before it decodes (again)."""

    sequence_id: RequestId
    content: TokenContent
    target: int
    computed: int = 0
    generated: int = 0
    runs: bool = False


@dataclass(slots=True)
class Asked:
    """One request and its answers; all but the first are forked off when the prompt is computed."""

    request_id: RequestId
    prompt_tokens: int
    max_tokens: int
    num_answers: int
    answers: list[Answer]

    @property
    def generated(self) -> tuple[int, ...]:
        """Tokens of each answer so far."""
        return tuple(answer.generated for answer in self.answers) + (0,) * (
            self.num_answers - len(self.answers)
        )


@dataclass(slots=True)
class Ended:
    """What ended since the last observation."""

    finished: dict[RequestId, Release] = field(default_factory=dict)
    refused: dict[RequestId, str] = field(default_factory=dict)
    generated: dict[RequestId, tuple[int, ...]] = field(default_factory=dict)


class RequestsEngine:
    """The reference driven by requests: schedules, samples and preempts by itself, shows full snapshots.

    Options ``max_sequences`` (default 256) and ``max_step_tokens`` (8192) limit its batch; the others are the
    reference's.

    **Raises:** `ConfigError` for a limit below 1, and whatever the reference refuses.
    """

    name = "reference-requests"
    cache_engine: type[ReferenceEngine] = ReferenceEngine

    def __init__(self, config: EngineConfig) -> None:
        limits = {name: _limit(config, name) for name in _LIMITS}
        own = {key: value for key, value in config.options.items() if key not in _LIMITS}
        self.engine = self.cache_engine(replace(config, options=own))
        spec = self.engine.spec
        self._spec = replace(
            spec,
            name=self.name,
            capabilities=(spec.capabilities - {Capability.FORK, Capability.RESET_CACHE})
            | {Capability.REQUEST_DRIVEN, Capability.SAMPLES},
            effective={**spec.effective, **limits},
        )
        self._max_sequences, self._max_step_tokens = limits["max_sequences"], limits["max_step_tokens"]
        self.running: list[Asked] = []
        self.waiting: deque[Asked] = deque()
        self.ended = Ended()
        self._left: set[RequestId] = set()
        self._steps = 0
        self._keys = _PRIVATE_KEYS
        self._settled: dict[RequestId, int] = {}

    @property
    def spec(self) -> EngineSpec:
        """Who the engine is and what it claims; constant."""
        return self._spec

    def submit(
        self, request_id: RequestId, prompt: TokenRun, *, max_tokens: int, num_answers: int = 1
    ) -> None:
        """Put a request at the end of the queue."""
        if any(asked.request_id == request_id for asked in (*self.running, *self.waiting)):
            raise EngineError(f"{request_id} was submitted already: ids of live requests are unique")
        first = Answer(request_id, self._sampled(prompt.content, prompt.stop), prompt.stop)
        self.waiting.append(Asked(request_id, prompt.stop, max_tokens, num_answers, [first]))

    def cancel(self, request_id: RequestId) -> None:
        """End the request with the next step."""
        self._left.add(request_id)

    def step(self) -> None:
        """Cancel, decode, go on with prompts, admit; then settle, fork and end."""
        self._settled = {}
        self._cancel()
        budget = self._decode()
        budget = self._prefill(budget)
        self._admit(budget)
        self.engine.take_ops()
        self.engine.launched(self._steps)
        self.engine.done(self._steps, self._settled)
        self._steps += 1
        self._fork()
        self._finish()

    def observe(self) -> Observation:
        """Return everything: who runs, what ended, every answer's tokens, and the pool in full."""
        ended, self.ended = self.ended, Ended()
        live = {asked.request_id: asked.generated for asked in (*self.running, *self.waiting)}
        return Observation(
            running=tuple(asked.request_id for asked in self.running),
            finished=ended.finished,
            snapshots=self.engine.snapshot(),
            generated={**live, **ended.generated},
            refused=ended.refused,
        )

    def release(self, asked: Asked, reason: Release) -> None:
        """Give back what a request holds."""
        for answer in asked.answers:
            if answer.runs:
                self.engine.release(answer.sequence_id, reason)
                answer.runs = False

    def _cancel(self) -> None:
        for asked in [asked for asked in (*self.running, *self.waiting) if asked.request_id in self._left]:
            self.release(asked, Release.CANCEL)
            (self.running if asked in self.running else self.waiting).remove(asked)
            self._end(asked, Release.CANCEL)
        self._left.clear()

    def _decode(self) -> int:
        budget = self._max_step_tokens
        for asked in list(self.running):
            for answer in asked.answers:
                ready = answer.runs and answer.computed >= answer.target
                if ready and answer.generated < asked.max_tokens and self._extend(asked, answer, 1):
                    answer.target = answer.computed
                    budget -= 1
        return budget

    def _prefill(self, budget: int) -> int:
        for asked in list(self.running):
            for answer in asked.answers:
                missing = min(answer.target - answer.computed, budget)
                if answer.runs and missing > 0 and self._extend(asked, answer, missing):
                    budget -= missing
        return budget

    def _extend(self, asked: Asked, answer: Answer, tokens: int) -> bool:
        """Take slots, whoever must give way; False when it was ``asked`` itself."""
        run = TokenRun(answer.content, answer.computed, answer.computed + tokens)
        while not self.engine.extend(answer.sequence_id, run):
            victim = self.running[-1]
            if victim is self.running[0]:
                self._give_up(victim)
            else:
                self._preempt(victim)
            if victim is asked:
                return False
        answer.computed = self._settled[answer.sequence_id] = run.stop
        return True

    def _give_up(self, alone: Asked) -> None:
        self.release(alone, Release.ERROR)
        self.running.remove(alone)
        self._refuse(alone, f"grows beyond the pool after {alone.generated[0]} tokens")

    def _preempt(self, victim: Asked) -> None:
        self.release(victim, Release.PREEMPT)
        self.running.remove(victim)
        for answer in victim.answers:
            self._settled.pop(answer.sequence_id, None)
            answer.target, answer.computed = max(answer.target, answer.computed), 0
        self.waiting.appendleft(victim)

    def _admit(self, budget: int) -> None:
        while self.waiting and budget > 0:
            asked = self.waiting[0]
            if sum(len(other.answers) for other in self.running) + asked.num_answers > self._max_sequences:
                return
            taken = self._take_in(asked, budget)
            if taken is None:
                return
            budget -= taken

    def _take_in(self, asked: Asked, budget: int) -> int | None:
        """Admit the head of the queue; ``None``: it waits on."""
        taken = 0
        for answer in asked.answers:
            run = TokenRun(answer.content, 0, answer.target)
            admission = self.engine.admit(
                answer.sequence_id, run, first_chunk_tokens=max(1, min(budget - taken, answer.target))
            )
            if admission.refusal is not None:
                self.release(asked, Release.PREEMPT)
                for other in asked.answers:
                    other.computed = 0
                    self._settled.pop(other.sequence_id, None)
                if self.running and admission.refusal.reason is not RefusalReason.NEVER_FITS:
                    return None
                self.waiting.popleft()
                self._refuse(asked, f"needs {admission.refusal.needed_blocks} blocks")
                return 0
            answer.runs = True
            answer.computed = self._settled[answer.sequence_id] = admission.scheduled_tokens
            taken += admission.scheduled_tokens - admission.hit_tokens
        self.waiting.popleft()
        self.running.append(asked)
        return taken

    def _fork(self) -> None:
        """Sample the first token of prompts just computed, and fork their other answers off."""
        for asked in self.running:
            first = asked.answers[0]
            if len(asked.answers) < asked.num_answers and first.computed == asked.prompt_tokens:
                for k in range(1, asked.num_answers):
                    child_id = RequestId(f"{asked.request_id}/{k}")
                    self.engine.fork(first.sequence_id, child_id)
                    content = self._sampled(first.content, asked.prompt_tokens)
                    asked.answers.append(Answer(child_id, content, first.target, first.computed, runs=True))

    def _finish(self) -> None:
        """Sample a token of every answer that was computed to its end, and end what has all its tokens."""
        for asked in list(self.running):
            for answer in asked.answers:
                if answer.runs and answer.computed >= answer.target:
                    answer.generated = answer.computed - asked.prompt_tokens + 1
            if all(tokens >= asked.max_tokens for tokens in asked.generated):
                self.release(asked, Release.FINISH)
                self.running.remove(asked)
                self._end(asked, Release.FINISH)

    def _end(self, asked: Asked, how: Release) -> None:
        self.ended.finished[asked.request_id] = how
        self.ended.generated[asked.request_id] = asked.generated

    def _refuse(self, asked: Asked, why: str) -> None:
        self.ended.refused[asked.request_id] = why
        self.ended.generated[asked.request_id] = asked.generated

    def _sampled(self, content: TokenContent, prompt_tokens: int) -> TokenContent:
        """Return content whose tokens after the prompt are sampled here, and nobody else's."""
        self._keys += 1
        return content.forked(prompt_tokens, self._keys)


def _limit(config: EngineConfig, name: str) -> int:
    value = config.options.get(name, _LIMITS[name])
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ConfigError(f"reference-requests: {name} is {value!r}, expected a number from 1 up")
    return value
