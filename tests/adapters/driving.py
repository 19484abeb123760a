"""A few verbs of the contract, short enough to read a test as a lifecycle."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsuite.trace.tokens import TokenContent, TokenRun

if TYPE_CHECKING:
    from kvsuite.engine.contract import Engine
    from kvsuite.trace.request import RequestId


def run(stop: int, start: int = 0, key: int = 7) -> TokenRun:
    """Return tokens ``start..stop`` of the content that ``key`` stands for."""
    return TokenRun(TokenContent((key,), ()), start, stop)


def admit(engine: Engine, name: RequestId, tokens: int, key: int = 7, chunk: int | None = None) -> int:
    """Admit a prompt that fits; return the tokens found."""
    answer = engine.admit(name, run(tokens, key=key), first_chunk_tokens=chunk or tokens)
    assert answer.accepted
    return answer.hit_tokens


def tables(engine: Engine) -> list[list[int]]:
    """Return the table of every live sequence, oldest first."""
    (shot,) = engine.snapshot()
    return [shot.table(row).tolist() for row in range(len(shot.request_ids))]


def counts(engine: Engine) -> dict[int, int]:
    """Return the reference counts that are claimed, by block."""
    (shot,) = engine.snapshot()
    assert shot.ref_count_ids is not None
    assert shot.ref_counts is not None
    return dict(zip(shot.ref_count_ids.tolist(), shot.ref_counts.tolist(), strict=True))
