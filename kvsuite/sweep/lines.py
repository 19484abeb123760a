"""Lines of a record that everything with a replay writes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsuite.golden.key import engine_hash
from kvsuite.record.build import (
    MAX_ROWS,
    content_line,
    engine_line,
    ledger_lines,
    ledger_of_summary,
    memory_lines,
)
from kvsuite.record.schema import CaseLine, ContentLine, EngineLine, LedgerLine, MemoryLine

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kvsuite.ledger.invariants import Violation
    from kvsuite.replay.compiled.replay import CompiledReplay
    from kvsuite.replay.driver import Replay

ReplayLine = EngineLine | LedgerLine | ContentLine | MemoryLine | CaseLine

NO_CONTENT = "content (nothing was written)"
"""What was not judged of a replay without slots."""


def replay_lines(
    done: Replay,
    *,
    case: str,
    engine: str,
    trace: str,
    duration_s: float,
    device: str = "cpu",
    max_rows: int = MAX_ROWS,
) -> Iterator[ReplayLine]:
    """Yield engine, ledgers, content, device memory and verdict of one replay.

    ``engine`` is what other lines call the engine; ``trace`` is the ref of a trace line written before.
    """
    yield engine_line(done.spec, ref=engine, engine_hash=engine_hash(done.spec))
    ledgers = ledger_lines(done, case=case, engine=engine, trace=trace, max_rows=max_rows)
    yield from ledgers
    yield content_line(done, ledger=ledgers[0].ref)
    yield from memory_lines(done.timeline.device, case=case)
    yield _case_line(
        done.violations,
        [f"{law.invariant} ({law.absent})" for law in done.not_judged],
        case=case,
        engine=engine,
        duration_s=duration_s,
        device=device,
    )


def compiled_lines(
    done: CompiledReplay,
    *,
    case: str,
    engine: str,
    trace: str,
    duration_s: float,
    max_rows: int = MAX_ROWS,
) -> Iterator[ReplayLine]:
    """Yield engine, ledger, content and verdict of one replay on the compiled core, as `replay_lines`."""
    yield engine_line(done.spec, ref=engine, engine_hash=engine_hash(done.spec))
    broken = any(violation.invariant == "closure" for violation in done.violations)
    ledger = ledger_of_summary(
        done.summary,
        done.scheduler,
        done.final_lengths,
        closing_gap_bytes=None if broken else 0,
        case=case,
        engine=engine,
        trace=trace,
        max_rows=max_rows,
    )
    yield ledger
    yield ContentLine(ledger=ledger.ref, mode="none", tokens_written=0, tokens_read=0, mismatches=0)
    yield _case_line(
        done.violations, [NO_CONTENT], case=case, engine=engine, duration_s=duration_s, device="cpu"
    )


def _case_line(
    violations: Sequence[Violation],
    not_judged: Sequence[str],
    *,
    case: str,
    engine: str,
    duration_s: float,
    device: str,
) -> CaseLine:
    return CaseLine(
        case=case,
        engine=engine,
        outcome="failed" if violations else "passed",
        duration_s=duration_s,
        device=device.partition(":")[0],
        message="\n".join(str(violation) for violation in violations[:5]),
        invariants=sorted({violation.invariant for violation in violations}),
        not_judged=sorted(set(not_judged)),
    )
