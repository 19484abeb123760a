"""A ring that gives its kernel slots of its own: what is read there, and what is due of it."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

import numpy as np
import pytest

from kvsuite.engine.contract import NO_OPS, Admission, Capability, EngineSpec, Ops, Release
from kvsuite.engine.snapshot import NO_BLOCKS, PoolKey, PoolKind, PoolSnapshot, PoolSpec
from kvsuite.replay.batch import SchedulerConfig
from kvsuite.replay.driver import Replay, replay
from kvsuite.replay.scene import Scene
from kvsuite.trace.model import TraceSource
from kvsuite.trace.rows import Row, trace_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvsuite.engine.snapshot import Int64Array
    from kvsuite.trace.model import RequestId
    from kvsuite.trace.tokens import TokenRun

WINDOW, SIZE, NUM_BLOCKS = 8, 4, 8
CHUNKS = SchedulerConfig(max_sequences=3, max_step_tokens=5)
EVERY_WAY = pytest.mark.parametrize("read_all", [False, True])


class RingEngine:
    """Sequences of two blocks at most: token ``p`` lies in slot ``p mod 8``, read are the last 7."""

    def __init__(self) -> None:
        self._free = list(range(NUM_BLOCKS))
        self._tables: dict[RequestId, list[int]] = {}
        self._lengths: dict[RequestId, int] = {}
        self._launched: dict[RequestId, int] = {}
        self._revision = 0
        self.spec = EngineSpec(
            name="ring",
            version="1",
            adapter_version=1,
            pools=(PoolSpec(PoolKey(), NUM_BLOCKS, SIZE, 8, kind=PoolKind.RING, window_tokens=WINDOW),),
            capabilities=frozenset({Capability.PAGED, Capability.CHUNKED_PREFILL, Capability.SLOTS}),
        )

    def admit(
        self,
        request_id: RequestId,
        prompt: TokenRun,
        *,
        first_chunk_tokens: int,
        max_tokens: int | None = None,
    ) -> Admission:
        del max_tokens
        self._tables[request_id] = []
        self._launched[request_id] = 0
        self._grow(request_id, min(first_chunk_tokens, prompt.stop))
        return Admission(scheduled_tokens=self._lengths[request_id])

    def extend(self, request_id: RequestId, tokens: TokenRun, *, lookahead_tokens: int = 0) -> bool:
        del lookahead_tokens
        self._grow(request_id, tokens.stop)
        return True

    def release(self, request_id: RequestId, reason: Release) -> None:
        del reason
        self._free += self._tables.pop(request_id)
        del self._lengths[request_id], self._launched[request_id]

    def take_ops(self) -> Ops:
        return NO_OPS

    def launched(self, step: int) -> None:
        del step
        self._launched = dict(self._lengths)

    def done(self, step: int, accepted: Mapping[RequestId, int]) -> None:
        """Nothing is published."""

    def snapshot(self, since: int | None = None) -> tuple[PoolSnapshot, ...]:
        del since
        self._revision += 1
        tables = list(self._tables.values())
        shot = PoolSnapshot(
            key=PoolKey(),
            revision=self._revision,
            since=None,
            request_ids=tuple(self._tables),
            lengths=np.array(list(self._lengths.values()), np.int64),
            table_rows=np.arange(len(tables), dtype=np.int32),
            table_offsets=np.cumsum([0, *map(len, tables)], dtype=np.int64),
            table_blocks=np.array([*chain.from_iterable(tables)], np.int32),
            free=np.array(self._free, np.int32),
            cached=NO_BLOCKS,
        )
        return (shot,)

    def read_slots(self, request_id: RequestId) -> tuple[Int64Array, ...]:
        length = self._lengths[request_id]
        return (self.slots(request_id, max(0, length - WINDOW + 1), length),)

    def write_slots(self, request_id: RequestId) -> tuple[Int64Array, ...]:
        start, stop = self._launched[request_id], self._lengths[request_id]
        return (self.slots(request_id, max(start, stop - WINDOW), stop),)

    def slots(self, request_id: RequestId, start: int, stop: int) -> Int64Array:
        """Return the slots of positions ``start..stop``."""
        places = [position % WINDOW for position in range(start, stop)]
        table = self._tables[request_id]
        return np.array([table[place // SIZE] * SIZE + place % SIZE for place in places], np.int64)

    def length(self, request_id: RequestId) -> int:
        return self._lengths[request_id]

    def _grow(self, request_id: RequestId, length: int) -> None:
        table = self._tables[request_id]
        while len(table) < -(-min(length, WINDOW) // SIZE):
            table.append(self._free.pop(0))
        self._lengths[request_id] = length


class ReadsItsNewest(RingEngine):
    """Reads the whole window, as a kernel does that finds the newest token in the cache."""

    def read_slots(self, request_id: RequestId) -> tuple[Int64Array, ...]:
        length = self.length(request_id)
        return (self.slots(request_id, max(0, length - WINDOW), length),)


class MissesItsNewest(RingEngine):
    """huggingface/transformers #47708: begins at ``n mod W``, one token too early once the ring is full."""

    def read_slots(self, request_id: RequestId) -> tuple[Int64Array, ...]:
        length = self.length(request_id)
        if length < WINDOW:
            return super().read_slots(request_id)
        return (self.slots(request_id, length - WINDOW, length - 1),)


class ReadsTooMany(RingEngine):
    """Reads a token that another one lies over."""

    def read_slots(self, request_id: RequestId) -> tuple[Int64Array, ...]:
        length = self.length(request_id)
        return (self.slots(request_id, max(0, length - WINDOW - 1), length),)


class ReadsTooFew(RingEngine):
    """Leaves the oldest token of the window out."""

    def read_slots(self, request_id: RequestId) -> tuple[Int64Array, ...]:
        return tuple(slots[1:] for slots in super().read_slots(request_id))


class WritesALongPromptFromItsStart(RingEngine):
    """The last 8 of a longer run are laid down from the place of its first token on."""

    def write_slots(self, request_id: RequestId) -> tuple[Int64Array, ...]:
        start, stop = self._launched[request_id], self.length(request_id)
        return (self.slots(request_id, start, min(stop, start + WINDOW)),)


def play(engine: RingEngine, *prompts: int, config: SchedulerConfig | None = None, read_all: bool) -> Replay:
    rows = [
        Row(request_id=f"r{tokens}", timestamp=0, input_length=tokens, output_length=24) for tokens in prompts
    ]
    trace = trace_of(rows, TraceSource("by hand", "ring"), block_size=SIZE)
    return replay(trace, engine, scheduler=config, read_all=read_all)


@EVERY_WAY
@pytest.mark.parametrize("config", [None, CHUNKS], ids=["whole", "chunks"])
@pytest.mark.parametrize("engine_type", [RingEngine, ReadsItsNewest])
def test_a_sound_ring_breaks_no_law(
    engine_type: type[RingEngine], config: SchedulerConfig | None, read_all: bool
) -> None:
    """Whether the newest token is read from the cache or not; of prompts shorter and longer than the ring."""
    done = play(engine_type(), 5, 18, 60, config=config, read_all=read_all)
    assert done.violations == ()
    assert done.content.tokens_written == 5 + 18 + 60 + 3 * 24
    (pool,) = done.timeline.pools
    assert pool.peak("payload") == 3 * WINDOW


@EVERY_WAY
def test_the_first_read_of_a_full_ring_that_misses_its_newest_token(read_all: bool) -> None:
    """5 tokens and 3 more: at 8 of them slots 0..6 are read, and 1..7 hold tokens 1..7.

    Token 6 was written the step before; counted back from 7 it is looked for in slot 5, block 1 offset 1.
    """
    done = play(MissesItsNewest(), 5, read_all=read_all)
    assert {violation.invariant for violation in done.violations} == {"content"}
    token, why = ("token 1 of r5, block 0 offset 0", "with every live token (7 tokens")
    if not read_all:
        token, why = ("token 6 of r5, block 1 offset 1", "one step after its write (1 tokens")
    first = str(done.violations[0])
    assert first.startswith(
        f"content at step 3 in pool device/g0/r0: {token}, does not hold what was written"
    )
    assert f"read {why} of this read are wrong)" in first


@EVERY_WAY
@pytest.mark.parametrize(
    ("engine_type", "says"),
    [
        (
            ReadsTooMany,
            "at step 4 in pool device/g0/r0: read_slots of r5 of 9 tokens gives 9 slots, expected 7 to 8",
        ),
        (
            ReadsTooFew,
            "at step 0 in pool device/g0/r0: read_slots of r5 of 5 tokens gives 4 slots, expected 5 to 5",
        ),
    ],
)
def test_another_number_of_slots_is_named(engine_type: type[RingEngine], says: str, read_all: bool) -> None:
    done = play(engine_type(), 5, read_all=read_all)
    assert str(done.violations[0]) == f"content {says}"


@EVERY_WAY
def test_a_long_prompt_in_the_wrong_places_is_found_where_it_is_read(read_all: bool) -> None:
    """18 tokens: 10..17 lie from slot 0 on, and are read from slot 3 on, token 11's."""
    done = play(WritesALongPromptFromItsStart(), 18, read_all=read_all)
    assert {violation.invariant for violation in done.violations} == {"content"}


@pytest.mark.parametrize(("engine_type", "laws"), [(RingEngine, set()), (MissesItsNewest, {"content"})])
def test_a_scene_reads_and_fences_a_ring_at_its_own_slots(
    engine_type: type[RingEngine], laws: set[str]
) -> None:
    scene = Scene(engine_type())
    scene.admit("a", 5)
    scene.admit("b", 13)
    for _ in range(6):
        scene.step()
        scene.extend("a")
        scene.extend("b", 3)
    scene.step()
    scene.drain()
    scene.judged = True
    assert {violation.invariant for violation in scene.found()} == laws


def test_what_is_written_into_a_ring_in_flight_is_found() -> None:
    """19 tokens in 2 blocks, more than the table has slots: the fence looks at those that are read."""
    scene = Scene(RingEngine())
    scene.admit("a", 19)
    scene.launch()
    (slots,) = scene.engine.read_slots(scene._live["a"].request_id)  # type: ignore[attr-defined]
    scene.worker.write(PoolKey(), slots[:1], np.zeros(1, np.int64))
    scene.settle()
    scene.judged = True
    assert [violation.message for violation in scene.found()] == [
        "block 1 offset 0 of a was overwritten while step 0 uses it (1 tokens are wrong)"
    ]
