"""From raw prefix ids to trie nodes: a node is (parent node, raw id), numbered by first appearance.

Salts, renumbering, a namespace a session and chained or unchained ids all come to the same nodes.

    request 1   ids 17 4 9    nodes 0 1 2
    request 2   ids 17 4 5    nodes 0 1 3      shares two blocks with request 1
    request 3   ids 4         nodes 4          id 4 after nothing is another prefix than id 4 after 17
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Any

import numpy as np

from kvsuite.trace.ragged import Appearances, chunks, offsets_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import numpy.typing as npt

    from kvsuite.trace.tokens import Int64Array

    SignedArray = npt.NDArray[np.signedinteger[Any]]

RawId = int | str

_END_OF_NUMBERS = 2**64


class GrowingChains:
    """The raw ids of requests, eight bytes each, before block size and tail are known.

    An id that is no number from 0 below 2**64 is numbered, and marked.
    """

    def __init__(self) -> None:
        self._raws = array("Q")
        self._marks: bytearray | None = None
        self._named: dict[RawId, int] = {}

    def extend(self, chains: Iterable[Sequence[RawId] | None]) -> None:
        """Append chains."""
        for chain in chains:
            if not chain:
                continue
            plain: Any = chain
            try:
                numbers: array[int] = array("Q", plain)
            except (TypeError, OverflowError):
                self._extend_named(chain)
                continue
            self._raws.extend(numbers)
            if self._marks is not None:
                self._marks.extend(bytes(len(numbers)))

    def _extend_named(self, chain: Sequence[RawId]) -> None:
        if self._marks is None:
            self._marks = bytearray(len(self._raws))
        for raw in chain:
            if isinstance(raw, int) and 0 <= raw < _END_OF_NUMBERS:
                self._raws.append(raw)
                self._marks.append(0)
            else:
                self._raws.append(self._named.setdefault(raw, len(self._named)))
                self._marks.append(1)

    def places(self, offsets: Int64Array, scopes: Int64Array) -> SignedArray:
        """Return, for each id, the place of the first that ends the same whole prefix. The ids are let go.

        An id of a partial block is one with that of a full block here; `numbered` parts them. Equal ids of
        different ``scopes`` are different prefixes.
        """
        raws = np.frombuffer(self._raws, np.uint64)
        marks = None if self._marks is None else np.frombuffer(self._marks, np.uint8)
        self._raws, self._marks = array("Q"), None
        count = len(raws)
        places: SignedArray = (
            np.arange(count, dtype=np.int32) if count < 2**31 else np.arange(count, dtype=np.int64)
        )
        known = np.flatnonzero(offsets[1:] > offsets[:-1])
        at, ends, parents = offsets[known], offsets[known + 1], -1 - scopes[known]
        while len(at):
            keys = (raws[at], parents) if marks is None else (marks[at], raws[at], parents)
            order = np.lexsort(keys)
            at, ends = at[order], ends[order]
            apart = np.ones(len(at), np.bool_)
            apart[1:] = np.any([key[order][1:] != key[order][:-1] for key in keys], axis=0)
            starts = np.flatnonzero(apart)
            sizes = np.diff(starts, append=len(at))
            nodes = np.repeat(np.minimum.reduceat(at, starts), sizes)
            places[at] = nodes
            # Chains that no other chain has kept company so far meet none any more.
            further = (np.repeat(sizes, sizes) > 1) & (at + 1 < ends)
            at, ends, parents = at[further] + 1, ends[further], nodes[further]
        return places


def numbered(places: Int64Array, offsets: Int64Array, partial_tokens: Int64Array) -> None:
    """Number the places of `GrowingChains` as nodes, in order of first appearance, in ``places`` itself.

    ``partial_tokens[i]`` are the tokens of the last place of request ``i`` where it is a partial block, else
    0: its node is keyed with them too, since a partial block never equals a full one.
    """
    if len(places) == 0:
        return
    bound = int(places.max()) + 1
    ends = offsets[1:][partial_tokens > 0] - 1
    if len(ends):
        _, lengths = np.unique(partial_tokens[partial_tokens > 0], return_inverse=True)
        keyed = places[ends] * (int(lengths.max()) + 1) + lengths.reshape(-1)
        distinct, nodes = np.unique(keyed, return_inverse=True)
        places[ends] = bound + nodes.reshape(-1)
        bound += len(distinct)
    appearances = Appearances(bound)
    for start, stop in chunks(len(places)):
        places[start:stop] = appearances.number(places[start:stop])


def build_nodes(
    chains: Sequence[Sequence[RawId]], hashed_tokens: Sequence[int], block_size: int, scopes: Sequence[int]
) -> tuple[Int64Array, Int64Array]:
    """Return ``node_offsets`` int64[n + 1] and ``nodes`` of ``n`` requests.

    ``chains[i]`` has one raw id a ``block_size`` tokens and covers ``hashed_tokens[i]`` tokens; where these
    end inside a block, its node is keyed with the length too: a partial block never equals a full one.
    Equal ids of different ``scopes`` (0 or more) are different prefixes.
    """
    ids = GrowingChains()
    ids.extend(chains)
    offsets = offsets_of(np.array([len(chain) for chain in chains], np.int64))
    nodes = ids.places(offsets, np.array(scopes, np.int64)).astype(np.int64)
    numbered(nodes, offsets, np.array(hashed_tokens, np.int64) % max(block_size, 1))
    return offsets, nodes
