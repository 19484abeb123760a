"""A clock for workloads whose requests all arrive at once: the schedule then does not depend on the costs.

So a replay on the logical clock gives the steps, and the costs of their ledger rows give the time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kvsuite.replay.compiled.replay import compiled_replay
from kvsuite.sweep.clock import ClockedReplay, RequestTimes, StepCosts
from kvsuite.trace.model import TraceSource
from kvsuite.trace.rows import Row, trace_of

if TYPE_CHECKING:
    from kvsuite.sweep.cells import Cell
    from kvsuite.trace.model import Trace


def burst(requests: int, *, prompt: int, output: int) -> Trace:
    """Return requests of one shape that arrive together."""
    rows = [
        Row(request_id=f"r{k}", timestamp=0, input_length=prompt, output_length=output)
        for k in range(requests)
    ]
    return trace_of(rows, TraceSource("invented", "burst"), block_size=0)


def burst_clock(cell: Cell, trace: Trace, costs: StepCosts) -> ClockedReplay:
    """Replay a burst, and let each step last what its row costs."""
    assert not trace.arrival_us.any()
    done = compiled_replay(trace, cell.config(trace), cell.scheduler)
    assert done.timeline is not None
    assert not done.fates.preemptions.any()
    (pool,) = done.timeline.pools
    zero = np.zeros(len(pool.rows), np.int64)
    features = np.stack(
        [
            zero + 1,
            pool.column("running"),
            pool.column("logical"),
            zero,
            zero,
            pool.column("table_entries"),
            pool.column("allocated") + pool.column("freed"),
        ],
        axis=1,
    )
    ends = np.cumsum([costs.step_us(row) for row in features])
    fates = done.fates
    first = np.searchsorted(done.timeline.steps, fates.first_token_step)
    outputs = fates.generated_tokens
    gaps = np.full(len(trace), np.nan)
    for k in np.flatnonzero(outputs > 1):
        waits = np.sort(np.diff(ends[first[k] : first[k] + outputs[k]]))
        gaps[k] = waits[-(-99 * len(waits) // 100) - 1]
    times = RequestTimes(
        arrival_us=trace.arrival_us.astype(float),
        ttft_us=np.where(fates.first_token_step >= 0, ends[first.clip(max=len(ends) - 1)], np.nan),
        itl_p99_us=gaps,
        output_tokens=outputs,
        ending=fates.ending,
        prompt_tokens=trace.prompt_tokens,
    )
    return ClockedReplay(done, times, ends, pool.column("running"), features)
