"""Seeded workloads with names, for cases, goldens and a first try without a download.

A name and a seed give the same trace, and the same content hash, with any NumPy: see `kvsuite.trace.draws`.
Prefix ids stand for 16 tokens each. Times are laid out for steps of 50 ms.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kvsuite.errors import TraceError
from kvsuite.trace.draws import BLOCK_SIZE, Draws
from kvsuite.trace.model import TraceSource
from kvsuite.trace.rows import Row, trace_of
from kvsuite.trace.synthetic_prompts import shared_prefix, shared_prompts

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvsuite.trace.model import Trace
    from kvsuite.trace.trie import RawId

HANDBOOK_MAX_TOKENS = 2048
HANDBOOK_SEED = 42
_EDGES = (0, 1, BLOCK_SIZE - 1)
"""Places in a block where copy-on-write and allocation differ: its start, one in, one short of full."""


@dataclass(frozen=True, slots=True)
class _Workload:
    description: str
    seed: int
    rows: Callable[[Draws], list[Row]]


def _handbook(draws: Draws) -> list[Row]:
    """Fifty lengths of the contiguous-versus-paged comparison that handbooks print.

    Eight uniform draws are discarded, then 50 exponential draws of scale 300 are clipped to 50..2048 and cut
    to whole numbers. Length ``n`` is a prompt of ``n`` tokens without an answer, capped at 2048 in all, and
    all arrive at once: at the step that prefills them, under a step budget of at least their 14,582 tokens,
    the cache holds exactly the lengths.
    """
    draws.legacy.random_sample(8)
    lengths = np.clip(draws.legacy.exponential(300, 50), 50, HANDBOOK_MAX_TOKENS).astype(np.int64)
    return [
        Row(
            timestamp=0,
            input_length=n,
            output_length=0,
            hash_ids=[],
            max_output_length=HANDBOOK_MAX_TOKENS - n,
        )
        for n in lengths.tolist()
    ]


def _chat(draws: Draws) -> list[Row]:
    """48 sessions of 2 to 8 turns; each turn repeats the session so far, answers included."""
    head = draws.ids(3)
    rows: list[Row] = []
    for session in range(48):
        history, length = head, len(head) * BLOCK_SIZE
        start_ms = draws.between(0, 20_000)
        for turn in range(draws.between(2, 8)):
            prompt, output = length + draws.between(5, 120), draws.between(8, 60)
            length = prompt + output
            finished = draws.ids_after(history, length)
            history = finished[: length // BLOCK_SIZE]
            rows.append(
                Row(
                    timestamp=start_ms,
                    input_length=prompt,
                    output_length=output,
                    output_hash_ids=finished,
                    session_id=str(session),
                    turn=turn,
                    max_output_length=64,
                )
            )
            start_ms += output * 50 + draws.between(500, 3_000)
    return sorted(rows, key=lambda row: int(row.timestamp))


def _long_context(draws: Draws) -> list[Row]:
    """24 questions on documents of 2,000 to 12,000 tokens; a third asks about an earlier document."""
    documents: list[list[RawId]] = []
    rows: list[Row] = []
    time_ms = 0
    for _ in range(24):
        if documents and draws.chance(33):
            document = documents[draws.between(0, len(documents) - 1)]
        else:
            document = draws.ids(draws.between(125, 750))
            documents.append(document)
        prompt = len(document) * BLOCK_SIZE + draws.between(10, 90)
        ids = draws.ids_after(document, prompt)
        rows.append(
            Row(timestamp=time_ms, input_length=prompt, output_length=draws.between(16, 48), hash_ids=ids)
        )
        time_ms += draws.between(500, 1_500)
    return rows


def _cancel_burst(draws: Draws) -> list[Row]:
    """160 requests within a second; every second one goes: before its first token, later, or at 1.5 s."""
    rows: list[Row] = []
    for index, time_ms in enumerate(sorted(draws.between(0, 1_000) for _ in range(160))):
        output = draws.between(20, 80)
        row = Row(timestamp=time_ms, input_length=draws.between(20, 300), output_length=output, hash_ids=[])
        match index % 8:
            case 1:
                row.cancel_after = 0
            case 3:
                row.cancel_after = draws.between(1, output)
            case 5 | 7:
                row.cancel_at = 1_500
        rows.append(row)
    return rows


def _divergence_burst(draws: Draws) -> list[Row]:
    """Parents forked at 0, 1 and 15 tokens into a block, 1, 3 and 7 children each.

    All parents are prefilled in one step, so in each half (samples, beams) all children write first in one.
    """
    rows: list[Row] = []
    for edge, children, blocks in itertools.product(_EDGES, (1, 3, 7), (2, 10)):
        prompt, name = blocks * BLOCK_SIZE + edge, f"n{blocks * BLOCK_SIZE + edge}m{children}"
        rows.extend(_family(draws, f"sample-{name}", prompt, prompt, children))
        rows.extend(_family(draws, f"beam-{name}", prompt - 5, prompt, children))
    return rows


def _family(draws: Draws, name: str, prompt: int, fork_at: int, children: int) -> list[Row]:
    parent = Row(request_id=name, timestamp=0, input_length=prompt, output_length=24, hash_ids=[])
    return [
        parent,
        *(
            Row(
                request_id=f"{name}.{child}",
                timestamp=0,
                input_length=prompt,
                output_length=fork_at - prompt + draws.between(1, 20),
                parent=name,
                fork="sample" if fork_at == prompt else "beam",
                fork_at=fork_at,
            )
            for child in range(children)
        ),
    ]


def _thrash(draws: Draws) -> list[Row]:
    """48 long answers at once and 12 prompts that come back: far more than 256 blocks of 16 can hold."""
    hot = [draws.ids(4) for _ in range(6)]
    rows: list[Row] = []
    for index in range(60):
        prefix = hot[index % len(hot)]
        prompt = len(prefix) * BLOCK_SIZE + draws.between(8, 128)
        long = index < 48
        rows.append(
            Row(
                timestamp=index * 20 if long else 12_000 + (index - 48) * 400,
                input_length=prompt,
                output_length=draws.between(128, 320) if long else draws.between(4, 16),
                hash_ids=draws.ids_after(prefix, prompt),
                max_output_length=320,
            )
        )
    return rows


def _churn(draws: Draws) -> list[Row]:
    """About 400 requests over 40 s: shared prefixes, samples, beams, cancellations, caps and growth."""
    systems = [draws.ids(blocks) for blocks in (2, 6, 12, 20)]
    rows: list[Row] = []
    time_ms = 0
    for index in range(320):
        system = systems[draws.between(0, 3)] if draws.chance(80) else []
        prompt, output = len(system) * BLOCK_SIZE + draws.between(1, 220), draws.between(4, 90)
        ids = draws.ids_after(system, prompt)
        row = Row(
            request_id=f"r{index}",
            timestamp=time_ms,
            input_length=prompt,
            output_length=output,
            hash_ids=ids,
            max_output_length=128,
        )
        rows.append(row)
        if draws.chance(20):
            rows.extend(_forks(draws, row))
        elif draws.chance(15):
            _cancel(draws, row)
        time_ms += draws.between(0, 250)
    return rows


def _forks(draws: Draws, parent: Row) -> list[Row]:
    beam = parent.output_length > 8 and draws.chance(40)
    generated = draws.between(1, parent.output_length - 1) if beam else 0
    return [
        Row(
            request_id=f"{parent.request_id}.{child}",
            timestamp=parent.timestamp,
            input_length=parent.input_length,
            output_length=min(generated + draws.between(1, 60), 128),
            max_output_length=128,
            parent=parent.request_id,
            fork="beam" if beam else "sample",
            fork_at=parent.input_length + generated,
        )
        for child in range(draws.between(1, 2))
    ]


def _cancel(draws: Draws, row: Row) -> None:
    if draws.chance(70):
        row.cancel_after = draws.between(0, row.output_length)
    else:
        row.cancel_at = int(row.timestamp) + draws.between(0, 3_000)


def _boundary(draws: Draws) -> list[Row]:
    """Prompts and answers one short of, at, and one past a multiple of 16."""
    del draws
    prompts = (1, 15, 16, 17, 31, 32, 33, 47, 48, 49, 63, 64, 65)
    pairs = itertools.product(prompts, (0, 1, 15, 16, 17))
    return [
        Row(timestamp=index * 50, input_length=prompt, output_length=output, hash_ids=[])
        for index, (prompt, output) in enumerate(pairs)
    ]


_WORKLOADS = {
    "handbook": _Workload(
        "50 lengths of contiguous versus paged allocation, all at once", HANDBOOK_SEED, _handbook
    ),
    "chat": _Workload("multi-turn sessions, each turn repeating the session so far", 11, _chat),
    "long-context": _Workload("questions on long documents, some asked again", 12, _long_context),
    "shared-prefix": _Workload("200 requests behind one system prompt of 400 tokens", 13, shared_prefix),
    "shared-prompts": _Workload("1,500 short requests behind 24 shared prompts", 110, shared_prompts),
    "cancel-burst": _Workload("160 requests in a second, half of which go away", 14, _cancel_burst),
    "divergence-burst": _Workload(
        "forks at the edges of a block, children writing at once", 15, _divergence_burst
    ),
    "thrash": _Workload("long answers far beyond a pool of 256 blocks of 16", 16, _thrash),
    "churn": _Workload("all of it mixed: prefixes, forks, cancellations, growth", 17, _churn),
    "boundary": _Workload("lengths around multiples of 16", 18, _boundary),
}


def workload_names() -> tuple[str, ...]:
    """Return the names that `synthetic` and the command line take."""
    return tuple(_WORKLOADS)


def describe(name: str) -> str:
    """Return a workload's description, one line.

    **Raises:** `TraceError` for an unknown name.
    """
    return _workload(name).description


def synthetic(name: str, seed: int | None = None) -> Trace:
    """Return a workload; without ``seed``, the one that its name stands for.

    **Raises:** `TraceError` for an unknown name.
    """
    workload = _workload(name)
    used = workload.seed if seed is None else seed
    source = TraceSource(format="synthetic", name=name, digest=f"seed:{used}")
    return trace_of(workload.rows(Draws(used)), source, block_size=BLOCK_SIZE)


def _workload(name: str) -> _Workload:
    if name not in _WORKLOADS:
        raise TraceError(f"unknown workload {name}: the workloads are {', '.join(_WORKLOADS)}")
    return _WORKLOADS[name]
