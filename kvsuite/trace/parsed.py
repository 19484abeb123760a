"""The parsed rows of a file as compact columns that grow by batches, in the order of the file."""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

import numpy as np

from kvsuite.errors import TraceError
from kvsuite.trace.growing import GrowingIds, GrowingInts, GrowingNames, int64_view
from kvsuite.trace.ragged import constant
from kvsuite.trace.request import ABSENT, ForkKind
from kvsuite.trace.times import TimeColumn
from kvsuite.trace.trie import GrowingChains

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvsuite.trace.clock import Time
    from kvsuite.trace.tokens import Int64Array
    from kvsuite.trace.trie import RawId

FORK_KINDS = {kind.name.lower(): kind for kind in ForkKind}


@dataclass(frozen=True, slots=True)
class Labels:
    """What a format calls its fields; ``prefix`` stands before a name where a place is given."""

    time: str
    prompt: str
    output: str
    prefix: str = "$."

    def place(self, line: int, name: str) -> str:
        """Return where a value stands, such as ``line 812 $.output_length``."""
        return f"line {line} {self.prefix}{name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Some rows as parallel lists; an empty optional list is one that the format lacks."""

    lines: Sequence[int]
    times: Sequence[Time]
    prompt_tokens: Sequence[int]
    output_tokens: Sequence[int]
    request_ids: Sequence[str | None] = ()
    hash_ids: Sequence[Sequence[RawId] | None] = ()
    output_hash_ids: Sequence[Sequence[RawId] | None] = ()
    """Ids of the whole finished sequence; they stand in for those of the prompt."""
    max_output_tokens: Sequence[int | None] = ()
    parents: Sequence[str | None] = ()
    forks: Sequence[str | None] = ()
    fork_at: Sequence[int | None] = ()
    cancel_after: Sequence[int | None] = ()
    cancel_at: Sequence[Time | None] = ()
    sessions: Sequence[str | None] = ()
    turns: Sequence[int | None] = ()
    priorities: Sequence[int] = ()
    request_scopes: Sequence[str | None] = ()
    """What sets equal tokens apart, not to be taken for ``local_ids``, within which ids mean something."""


class ParsedRows:
    """Every row so far; 33 bytes each beside what it has of optional columns, ids and names.

    ``local_ids`` says that a prefix id means something within its session only.
    """

    def __init__(self, labels: Labels, *, local_ids: bool = False) -> None:
        self.labels = labels
        self.local_ids = local_ids
        self._lines = array("q")
        self.times = TimeColumn()
        self.prompts = GrowingInts()
        self.outputs = GrowingInts()
        self.ids = GrowingIds()
        self.prompt_ids = GrowingInts()
        """How many ids stand for the prompt of each row; `ABSENT` where nothing is known."""
        self.finished_ids = GrowingInts()
        """How many stand for its whole finished sequence."""
        self.chains = GrowingChains()
        self.optional = {
            name: GrowingInts() for name in ("max_output_tokens", "fork_at", "cancel_after", "turn")
        }
        self.fork_kinds = GrowingInts()
        self.priorities = GrowingInts(absent=0)
        self.sessions = GrowingNames()
        self.scopes = GrowingNames()
        self.parents: dict[int, str] = {}
        """Names of the parents of the rows that have one."""
        self.cancel_rows = GrowingInts()
        """Rows with a time of cancellation, and in the next column that time."""
        self.cancel_times = TimeColumn()

    def __len__(self) -> int:
        return len(self._lines)

    @property
    def lines(self) -> Int64Array:
        """Line of the file of each row."""
        return int64_view(self._lines)

    def extend(self, batch: Batch) -> None:
        """Append the rows of a batch."""
        count, first = len(batch.lines), len(self)
        absent = [None] * count
        self._lines.extend(batch.lines)
        self.times.extend(batch.times)
        self.prompts.extend(batch.prompt_tokens)
        self.outputs.extend(batch.output_tokens)
        self.ids.extend(batch.request_ids or absent)
        self.sessions.extend(batch.sessions or absent)
        self._extend_chains(batch.hash_ids or absent, batch.output_hash_ids or absent)
        self.optional["max_output_tokens"].extend_given(batch.max_output_tokens or absent)
        self.optional["fork_at"].extend_given(batch.fork_at or absent)
        self.optional["cancel_after"].extend_given(batch.cancel_after or absent)
        self.optional["turn"].extend_given(batch.turns or absent)
        self.fork_kinds.extend(
            [ABSENT if kind is None else FORK_KINDS[kind] for kind in batch.forks or absent]
        )
        self.priorities.extend(batch.priorities or [0] * count)
        self.scopes.extend(batch.request_scopes or absent)
        self.parents.update((row, name) for row, name in enumerate(batch.parents, first) if name is not None)
        ends = [(row, time) for row, time in enumerate(batch.cancel_at, first) if time is not None]
        self.cancel_rows.extend([row for row, _ in ends])
        self.cancel_times.extend([time for _, time in ends])

    def _extend_chains(
        self,
        prompts: Sequence[Sequence[RawId] | None],
        finished: Sequence[Sequence[RawId] | None],
    ) -> None:
        self.prompt_ids.extend([ABSENT if ids is None else len(ids) for ids in prompts])
        self.finished_ids.extend([ABSENT if ids is None else len(ids) for ids in finished])
        self.chains.extend(
            own if whole is None else whole for own, whole in zip(prompts, finished, strict=True)
        )

    def id_counts(self) -> Int64Array:
        """Return how many ids each row has, those of its finished sequence where it has them."""
        finished = self.finished_ids.column()
        prompts = self.prompt_ids.column()
        return np.where(finished == ABSENT, prompts, finished) if finished.strides != (0,) else prompts

    def id_scopes(self) -> Int64Array:
        """Return a number for what the ids of each row mean something within."""
        return np.maximum(self.sessions.codes.column(), 0) if self.local_ids else constant(len(self), 0)

    def fail(self, row: int, name: str, found: str, remedy: str) -> NoReturn:
        """Raise the `TraceError` of one row."""
        raise TraceError(f"{found} @ {self.labels.place(int(self.lines[row]), name)}: {remedy}")
