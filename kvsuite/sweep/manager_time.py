"""What the manager itself costs: the readable paged cache, in this process, on this thread.

Two things are timed at each block size: sequences that are admitted and released, whose blocks change hands
in one go; and that grow by a token a step, as in decoding, where a call now and then takes a block. The first
tells what a block costs, the second what a step's call for a sequence costs beside it.
"""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING

from kvsuite.cache.paged import PagedCache
from kvsuite.device.timing.rounds import Load, Task, Timing, What, in_rounds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

MANAGER = "manager"
NAME = "kvsuite.cache.paged.PagedCache, in Python"
SEQUENCES = 64
PROMPT_TOKENS = 1024
STEPS = 16


def manager_timings(
    sizes: Iterable[int], rounds: int, clock: Callable[[], float] = time.thread_time
) -> list[Timing]:
    """Time the manager at each block size, interleaved; ``clock`` gives seconds."""
    return in_rounds([_task(size, clock) for size in sizes], rounds)


def _task(block_size: int, clock: Callable[[], float]) -> Task:
    run = partial(_lifecycle, block_size, clock)
    (_, held), (_, grown), (_, released) = run()  # the untimed call, which also counts
    loads = (Load(blocks=held + released), Load(sequences=SEQUENCES * STEPS, blocks=grown))
    what = tuple(What(part=MANAGER, load=load, block_size=block_size) for load in loads)

    def measure() -> tuple[float, float]:
        (admit_us, _), (grow_us, _), (release_us, _) = run()
        return admit_us + release_us, grow_us

    return Task(what, measure)


def _lifecycle(block_size: int, clock: Callable[[], float]) -> tuple[tuple[float, int], ...]:
    """Admit, grow and release; return the microseconds of each, and the blocks that it took or gave back.

    Prompts differ in length, so that sequences do not all take a block in the same step.
    """
    room = -(-(PROMPT_TOKENS + SEQUENCES + STEPS) // block_size)
    cache = PagedCache(SEQUENCES * room, block_size, prefix_cache=False)
    names = [f"r{number}" for number in range(SEQUENCES)]

    def admit() -> None:
        for number, name in enumerate(names):
            cache.admit(name, PROMPT_TOKENS + number)

    def grow() -> None:
        for _ in range(STEPS):
            for name in names:
                cache.extend(name, 1)

    def release() -> None:
        for name in names:
            cache.release(name)

    return tuple(_timed(each, cache, clock) for each in (admit, grow, release))


def _timed(call: Callable[[], None], cache: PagedCache, clock: Callable[[], float]) -> tuple[float, int]:
    free, began = cache.pool.num_free, clock()
    call()
    return (clock() - began) * 1e6, abs(cache.pool.num_free - free)
