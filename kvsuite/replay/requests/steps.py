"""The engine's side: requests go in when they arrive, clients go away, and each step is looked at once.

One step, in this order: cancellations that are due, arrivals up to ``step * step_us``, the engine's own step,
one look. After the last request has ended one more step is made, so that an engine which shows its pool as it
stands in the forward pass shows it empty.
"""

from __future__ import annotations

import heapq
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kvsuite.engine.contract import Capability, Release
from kvsuite.engine.request_guard import GuardedRequestEngine
from kvsuite.replay.batch import Ending
from kvsuite.replay.requests.asked import UNSEEN, asked_trace

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvsuite.engine.contract import EngineSpec, Observation, RequestEngine
    from kvsuite.replay.requests.asked import AskedRequest
    from kvsuite.trace.model import RequestId, Trace
    from kvsuite.trace.tokens import TokenContent

CHUNK_TOKENS = 64
"""Prompt tokens that even a slow engine computes in one step."""
MARGIN_STEPS = 1024
STALL_STEPS = 256
"""Steps in a row in which nothing that can be seen may change while requests are live; four blocks more,
because an answer that cannot be seen shows by its next block alone."""
LEAVING_STEPS = 2
"""Steps within which a request ends whose client went away."""


@dataclass(slots=True)
class Watched:
    """One request that was submitted, and what was seen of it so far."""

    asked: AskedRequest
    content: TokenContent
    submitted_step: int
    generated: tuple[int, ...] | None = None
    sampled: bool = False
    """Every answer was given a token in the newest step."""
    left_step: int | None = None
    """When its client went away."""
    first_token_step: int | None = None
    ended_step: int | None = None
    ending: Ending | None = None
    refusal: str | None = None
    """Why the engine gave it up, in its own words."""
    by_error: bool = False

    @property
    def request_id(self) -> RequestId:
        """The request's id."""
        return self.asked.request.request_id


@dataclass(slots=True)
class RequestFrame:
    """One step: what came and went, what was seen, and every request that was live in it."""

    step: int
    seen: Observation
    watched: tuple[Watched, ...]
    """Requests live in this step, those included that ended in it, in the order they were submitted."""
    before: dict[RequestId, tuple[int, ...] | None] = field(default_factory=dict)
    """Their answers as last seen before."""
    arrived: int = 0
    left: int = 0
    """Clients that went away before this step."""
    closing: bool = False
    """The step made after the last request had ended."""


class RequestStepper:
    """Takes ``trace`` through ``engine``; `frames` may be walked once.

    It gives up, with `stuck` set, when nothing changes for `STALL_STEPS`, or after more steps than one
    request at a time would take.

    **Raises:** `EngineError` when the engine breaks the contract in a way that leaves nothing to judge.
    """

    def __init__(self, trace: Trace, engine: RequestEngine, *, step_us: int) -> None:
        self._engine = GuardedRequestEngine(engine)
        self.asked = asked_trace(trace, samples=self.spec.claims(Capability.SAMPLES))
        self.unseen: Counter[str] = Counter()
        """What the trace asks for at a token count that could not be seen."""
        self.watched: dict[int, Watched] = {}
        """Every request submitted so far, by its row in the trace."""
        self.never_started: list[AskedRequest] = []
        """Spawned requests whose parent never answered."""
        self.stuck: str | None = None
        """Why it gave up; the requests still live then never ended."""
        self._trace = trace
        self._step_us = step_us
        self._live: dict[RequestId, Watched] = {}
        self._arrivals = deque(asked for asked in self.asked.requests if asked.spawned_by is None)
        self._spawns = [asked for asked in self.asked.requests if asked.spawned_by is not None]
        self._ready: list[AskedRequest] = []
        """Spawned requests whose parent has answered."""
        self._leaves: list[tuple[int, int]] = []
        self._quiet_steps = 0
        self._signature: object = None

    @property
    def spec(self) -> EngineSpec:
        """Who the engine is and what it claims."""
        return self._engine.spec

    @property
    def num_ended(self) -> int:
        """Requests that have ended."""
        return len(self.watched) - len(self._live)

    def frames(self) -> Iterator[RequestFrame]:
        """Yield one frame a step; idle steps before an arrival are left out."""
        limit = self._step_limit()
        step = self._next_step(0)
        while step is not None:
            frame = self._one_step(step)
            yield frame
            self.stuck = self._standstill(frame.seen, step, limit)
            if self.stuck is not None:
                return
            last, step = step, self._next_step(step + 1)
            if step is None:
                yield self._closing(last + 1)
        self._engine.check_spec_is_constant()

    def _one_step(self, step: int) -> RequestFrame:
        self._engine.step_number = step
        left = self._leave_due(step)
        arrived = self._arrive_due(step)
        watched = tuple(self._live.values())
        before = {one.request_id: one.generated for one in watched}
        self._engine.step()
        seen = self._engine.observe()
        self._follow(seen, step)
        return RequestFrame(step, seen, watched, before, arrived, left)

    def _closing(self, step: int) -> RequestFrame:
        self._engine.step_number = step
        self._engine.step()
        return RequestFrame(step, self._engine.observe(), (), closing=True)

    def _next_step(self, step: int) -> int | None:
        if self._live or self._ready:
            return step
        if self._arrivals:
            return max(step, -(-self._arrivals[0].request.arrival_us // self._step_us))
        return None

    def _leave_due(self, step: int) -> int:
        due = []
        while self._leaves and self._leaves[0][0] <= step:
            due.append(heapq.heappop(self._leaves)[1])
        left = 0
        for index in sorted(due):
            one = self.watched[index]
            if one.ending is None and one.left_step is None:
                one.left_step = step
                self._engine.cancel(one.request_id)
                left += 1
        return left

    def _arrive_due(self, step: int) -> int:
        now_us = step * self._step_us
        due, self._ready = self._ready, []
        while self._arrivals and self._arrivals[0].request.arrival_us <= now_us:
            due.append(self._arrivals.popleft())
        for asked in due:
            self._submit(asked, step)
        return len(due)

    def _spawn(self) -> None:
        """Make ready what an answer has spawned; set apart what nothing will spawn any more."""
        lost = {asked.request.index for asked in self.never_started}
        rest = []
        for asked in self._spawns:
            assert asked.spawned_by is not None
            parent = self.watched.get(asked.spawned_by)
            if parent is not None and (
                parent.first_token_step is not None or parent.ending is Ending.FINISHED
            ):
                self._ready.append(asked)
            elif asked.spawned_by in lost or (parent is not None and parent.ending is not None):
                self.never_started.append(asked)
                lost.add(asked.request.index)
            else:
                rest.append(asked)
        self._spawns = rest

    def _submit(self, asked: AskedRequest, step: int) -> None:
        request = asked.request
        prompt = self._trace.prompt(request.index)
        one = Watched(asked, prompt.content, step)
        self.watched[request.index] = self._live[request.request_id] = one
        self._engine.submit(
            request.request_id, prompt, max_tokens=asked.max_tokens, num_answers=asked.num_answers
        )
        if request.cancel_at_us is not None:
            due = -(-request.cancel_at_us // self._step_us)
            heapq.heappush(self._leaves, (max(due, step + 1), request.index))
        elif request.cancel_after == 0:
            self._plan_leaving(one, step)

    def _plan_leaving(self, one: Watched, step: int) -> None:
        heapq.heappush(self._leaves, (step + 1, one.asked.request.index))

    def _follow(self, seen: Observation, step: int) -> None:
        for one in self._live.values():
            self._follow_answers(one, seen.generated.get(one.request_id), step)
        for request_id, how in seen.finished.items():
            one = self._live.pop(request_id)
            one.ended_step, one.by_error = step, how in {Release.ERROR, Release.PREEMPT}
            one.ending = Ending.CANCELLED if how is Release.CANCEL else Ending.FINISHED
            after = one.asked.request.cancel_after
            if after and one.generated is None and one.left_step is None:
                self.unseen[UNSEEN] += 1
        for request_id, why in seen.refused.items():
            one = self._live.pop(request_id)
            one.ended_step, one.ending, one.refusal = step, Ending.REJECTED, why
        self._spawn()

    def _follow_answers(self, one: Watched, now: tuple[int, ...] | None, step: int) -> None:
        before = one.generated if one.generated is not None else (0,) * one.asked.num_answers
        one.sampled = now is not None and all(new > old for new, old in zip(now, before, strict=True))
        if now is None:
            return
        one.generated = now
        if one.first_token_step is None and max(now) > 0:
            one.first_token_step = step
        after = one.asked.request.cancel_after
        if after and max(before) < after <= max(now):
            self._plan_leaving(one, step)

    def _standstill(self, seen: Observation, step: int, limit: int) -> str | None:
        answers = [(one.request_id, one.generated, one.left_step) for one in self._live.values()]
        signature = (answers, seen.running, seen.counts, [int(shot.lengths.sum()) for shot in seen.snapshots])
        self._quiet_steps = self._quiet_steps + 1 if signature == self._signature else 0
        self._signature = signature
        allowed = STALL_STEPS + 4 * max(pool.block_size for pool in self.spec.pools)
        if not self._live:
            return None
        if self._quiet_steps >= allowed:
            return f"nothing has changed for {self._quiet_steps} steps"
        if step > limit:
            return f"more steps have been taken than one request at a time would take, {limit}"
        return None

    def _step_limit(self) -> int:
        last_arrival = max((asked.request.arrival_us for asked in self.asked.requests), default=0)
        one_by_one = sum(
            -(-asked.request.prompt_tokens // CHUNK_TOKENS) + asked.max_tokens
            for asked in self.asked.requests
        )
        return -(-last_arrival // self._step_us) + one_by_one + MARGIN_STEPS
