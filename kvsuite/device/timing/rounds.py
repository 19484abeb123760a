"""Tasks timed in rounds: each round calls every task once, in an order of its own."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What one call does, in the counts that its time depends on."""

    sequences: int = 0
    context_tokens: int = 0
    """Over all sequences."""
    prefill_tokens: int = 0
    prefill_pairs: int = 0
    """A token of a chunk times a token that it reads: those before it and itself."""
    table_entries: int = 0
    blocks: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class What:
    """What is timed: a part of a step, at a block size where it has one, under a load.

    ``cold``: the caches were swept between the untimed call and this one.
    """

    part: str
    load: Load = field(default_factory=Load)
    block_size: int | None = None
    cold: bool = False


@dataclass(frozen=True, slots=True)
class Timing:
    """The microseconds of each round."""

    what: What
    rounds_us: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeTime:
    """The microseconds of one decode step, by part: of one layer, of the cut head, of the whole upload."""

    attention_us: float
    rest_us: float
    head_us: float
    upload_us: float


@dataclass(frozen=True, slots=True)
class Task:
    """Measures one or several things in one go; ``measure`` returns the microseconds of each."""

    what: tuple[What, ...]
    measure: Callable[[], tuple[float, ...]]


def in_rounds(
    tasks: Sequence[Task], rounds: int, *, seed: int = 0, progress: Callable[[int, int], None] | None = None
) -> list[Timing]:
    """Call every task once a round, shuffled anew in each, so that a slow moment falls on no task alone.

    ``progress`` is called with tasks done and in all.
    """
    taken: list[list[tuple[float, ...]]] = [[] for _ in tasks]
    chance = random.Random(seed)
    order = list(range(len(tasks)))
    for number in range(rounds):
        chance.shuffle(order)
        for done, index in enumerate(order):
            taken[index].append(tasks[index].measure())
            if progress is not None:
                progress(number * len(tasks) + done + 1, rounds * len(tasks))
    return [
        Timing(what, tuple(column))
        for task, rows in zip(tasks, taken, strict=True)
        for what, column in zip(task.what, zip(*rows, strict=True), strict=True)
    ]
