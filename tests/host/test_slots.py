"""Indices as they travel: what stands is not told again, and whatever changed arrives."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kvsuite.replay.addresses import Indices
from kvsuite.replay.host.slots import IndicesPacker, IndicesUnpacker
from kvsuite.trace.model import RequestId

if TYPE_CHECKING:
    from kvsuite.replay.addresses import Given

A, B = RequestId("a"), RequestId("b")
Steps = list[dict[RequestId, list[list[int]]]]


def _indices(writes: dict[RequestId, list[list[int]]], reads: dict[RequestId, list[list[int]]]) -> Indices:
    def given(named: dict[RequestId, list[list[int]]]) -> Given:
        return {
            name: (len(pools[0]), tuple(np.array(slots, np.int64) for slots in pools))
            for name, pools in named.items()
        }

    return Indices(given(writes), given(reads))


def _plain(indices: Indices | None) -> list[dict[RequestId, tuple[int, list[list[int]]]]]:
    assert indices is not None
    return [
        {name: (length, [slots.tolist() for slots in pools]) for name, (length, pools) in given.items()}
        for given in (indices.writes, indices.reads)
    ]


READS: Steps = [
    {},
    {A: [[4, 5], [9, 8]]},
    {A: [[4, 5, 6], [9, 8, 7]], B: [[1], [2]]},
    {A: [[4, 5, 6, 7], [9, 3, 7, 1]], B: [[1, 2], [2, 3]]},  # a middle slot of the second pool moved
    {B: [[1], [2, 3]]},  # one sequence left, the other is shorter in one pool
    {A: [[30], [40]], B: [[1, 2], [2, 3]]},  # the one that left is back, elsewhere
    {A: [[], []], B: [[], [5]]},
]


def test_every_step_arrives_as_it_was() -> None:
    packer, unpacker = IndicesPacker(), IndicesUnpacker()
    for reads in READS:
        indices = _indices({name: [slots[-1:] for slots in pools] for name, pools in reads.items()}, reads)
        assert _plain(unpacker.unpack(packer.pack(indices))) == _plain(indices)


def test_a_sequence_that_grew_is_told_as_its_new_slots() -> None:
    packer = IndicesPacker()
    packer.pack(_indices({}, {A: [[4, 5, 6]]}))
    packed = packer.pack(_indices({}, {A: [[4, 5, 6, 20]]}))
    assert packed is not None
    names, lengths, counts, new = packed[1]
    assert (names, lengths.tolist(), counts.tolist(), new.tolist()) == (None, [4], [3, 1], [20])


def test_an_array_that_an_engine_writes_to_again_is_told_again() -> None:
    packer, unpacker = IndicesPacker(), IndicesUnpacker()
    mine = np.array([4, 5], np.int64)
    first = unpacker.unpack(packer.pack(Indices({}, {A: (2, (mine,))})))
    mine[0] = 9
    second = unpacker.unpack(packer.pack(Indices({}, {A: (2, (mine,))})))
    assert _plain(second)[1] == {A: (2, [[9, 5]])}
    assert _plain(first)[1] == {A: (2, [[4, 5]])}


def test_an_engine_without_indices_sends_none() -> None:
    assert IndicesUnpacker().unpack(IndicesPacker().pack(None)) is None
