"""A trace through an engine that schedules and samples by itself, judged on what it lets us see."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kvsuite.errors import ConfigError, EngineError
from kvsuite.replay.batch import Ending, SchedulerConfig
from kvsuite.replay.content import ContentTally
from kvsuite.replay.frame import Outcome
from kvsuite.replay.recorder import Replay
from kvsuite.replay.requests.judge import never_ended
from kvsuite.replay.requests.ledger import RequestLedger
from kvsuite.replay.requests.steps import RequestStepper

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kvsuite.engine.contract import RequestEngine
    from kvsuite.trace.model import RequestId, Trace

UNCHECKED = ContentTally("none", 0, 0, 0, None)
"""Content of an engine whose slots nobody else can read."""


@dataclass(frozen=True)
class RequestReplay(Replay):
    """A replay of which only the outside was seen; ``content`` is unchecked, always."""

    changed: Mapping[str, int]
    """Requests asked otherwise than the trace says, by reason."""
    dropped: Mapping[str, int]
    """Parts of the trace that could not be asked for, by reason."""
    refused: Mapping[RequestId, str]
    """Requests the engine gave up, with its reason in its own words."""


def replay_requests(
    trace: Trace,
    engine: RequestEngine,
    scheduler: SchedulerConfig | None = None,
    *,
    progress: Callable[[int, int], None] | None = None,
) -> RequestReplay:
    """Take ``trace`` through ``engine``; of ``scheduler`` only the length of a step is used.

    ``progress`` is called with requests ended and in all.

    **Raises:** `EngineError` when the engine breaks the contract in a way that leaves nothing to judge;
    `ConfigError` for step costs: what a step of an engine that schedules by itself does, it does not show.
    """
    config = scheduler or SchedulerConfig()
    if config.costs is not None:
        raise ConfigError(
            f"engine {engine.spec.name!r} schedules by itself, and what its steps do is not shown: step "
            "costs cannot be charged; give step_us alone"
        )
    stepper = RequestStepper(trace, engine, step_us=config.step_us)
    ledger = RequestLedger(stepper.spec)
    try:
        for frame in stepper.frames():
            ledger.take(frame)
            if progress is not None and len(ledger.steps) % 64 == 0:
                progress(stepper.num_ended, len(stepper.asked.requests))
    except EngineError as error:
        found = ledger.found()
        if not found:
            raise
        raise EngineError(f"{error}\nbroken before that: {found[0]}") from error
    if progress is not None:
        progress(stepper.num_ended, len(stepper.asked.requests))
    return _result(trace, stepper, ledger, config)


def _result(
    trace: Trace, stepper: RequestStepper, ledger: RequestLedger, config: SchedulerConfig
) -> RequestReplay:
    violations = ledger.found()
    if stepper.stuck is not None:
        live = [one for one in stepper.watched.values() if one.ending is None]
        violations += tuple(never_ended(live, stepper.stuck, stepper.spec, ledger.steps[-1]))
    watched = stepper.watched
    finished = [one for one in watched.values() if one.ending in {Ending.FINISHED, Ending.CANCELLED}]
    return RequestReplay(
        spec=stepper.spec,
        scheduler=config,
        timeline=ledger.timeline(),
        outcomes=_outcomes(trace, stepper),
        content=UNCHECKED,
        violations=violations,
        not_judged=ledger.not_judged(),
        final_lengths=np.array(
            [
                one.asked.request.prompt_tokens + tokens
                for one in sorted(finished, key=lambda one: one.ended_step or 0)
                for tokens in one.generated or ()
            ],
            np.int64,
        ),
        fork_families=(),
        refusals={},
        clock=None,
        changed=stepper.asked.changed,
        dropped=Counter(stepper.asked.dropped) + stepper.unseen,
        refused={one.request_id: one.refusal for one in watched.values() if one.refusal is not None},
    )


def _outcomes(trace: Trace, stepper: RequestStepper) -> tuple[Outcome, ...]:
    """Return how the requests fared that were asked for; what cannot be seen of them is ``None``."""
    orphans = {asked.request.index for asked in stepper.never_started}
    outcomes = []
    for asked in stepper.asked.requests:
        index = asked.request.index
        one = stepper.watched.get(index)
        ending = Ending.ORPHANED if index in orphans else None if one is None else one.ending
        outcomes.append(
            Outcome(
                index=index,
                ending=ending,
                arrived_step=None if one is None else one.submitted_step,
                admitted_step=None,
                first_token_step=None if one is None else one.first_token_step,
                ended_step=None if one is None else one.ended_step,
                generated_tokens=None if one is None or one.generated is None else max(one.generated),
                final_tokens=asked.final_tokens,
                hit_tokens=None,
                preemptions=None,
            )
        )
    return tuple(outcomes)
