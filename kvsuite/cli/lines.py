"""Lines of a record that every verb with a replay writes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsuite.golden.key import engine_hash
from kvsuite.record.build import MAX_ROWS, content_line, engine_line, ledger_lines, memory_lines
from kvsuite.record.schema import CaseLine

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvsuite.record.schema import AnyLine
    from kvsuite.replay.driver import Replay


def replay_lines(
    done: Replay,
    *,
    case: str,
    engine: str,
    trace: str,
    duration_s: float,
    device: str = "cpu",
    max_rows: int = MAX_ROWS,
) -> Iterator[AnyLine]:
    """Yield engine, ledgers, content, device memory and verdict of one replay.

    ``engine`` is what other lines call the engine; ``trace`` is the ref of a trace line written before.
    """
    yield engine_line(done.spec, ref=engine, engine_hash=engine_hash(done.spec))
    ledgers = ledger_lines(done, case=case, engine=engine, trace=trace, max_rows=max_rows)
    yield from ledgers
    yield content_line(done, ledger=ledgers[0].ref)
    yield from memory_lines(done.timeline.device, case=case)
    yield CaseLine(
        case=case,
        engine=engine,
        outcome="failed" if done.violations else "passed",
        duration_s=duration_s,
        device=device.partition(":")[0],
        message="\n".join(str(violation) for violation in done.violations[:5]),
        invariants=sorted({violation.invariant for violation in done.violations}),
        not_judged=sorted({f"{law.invariant} ({law.absent})" for law in done.not_judged}),
    )
