"""From raw prefix ids to trie nodes: a node is (parent node, raw id), numbered by first appearance.

Salts, renumbering, a namespace a session and chained or unchained ids all come to the same nodes.

    request 1   ids 17 4 9    nodes 0 1 2
    request 2   ids 17 4 5    nodes 0 1 3      shares two blocks with request 1
    request 3   ids 4         nodes 4          id 4 after nothing is another prefix than id 4 after 17
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvsuite.trace.tokens import Int64Array

RawId = int | str


def build_nodes(
    chains: Sequence[Sequence[RawId]], hashed_tokens: Sequence[int], block_size: int, scopes: Sequence[int]
) -> tuple[Int64Array, Int64Array]:
    """Return ``node_offsets`` int64[n + 1] and ``nodes`` of ``n`` requests.

    ``chains[i]`` has one raw id a ``block_size`` tokens and covers ``hashed_tokens[i]`` tokens; where these
    end inside a block, its node is keyed with the length too: a partial block never equals a full one.
    Equal ids of different ``scopes`` (0 or more) are different prefixes.
    """
    known: dict[tuple[int, RawId] | tuple[int, RawId, int], int] = {}
    number = known.setdefault
    nodes: list[int] = []
    for chain, covered, scope in zip(chains, hashed_tokens, scopes, strict=True):
        parent = -1 - scope
        partial = covered % block_size if block_size else 0
        for raw in chain[:-1] if partial else chain:
            parent = number((parent, raw), len(known))
            nodes.append(parent)
        if partial:
            nodes.append(number((parent, chain[-1], partial), len(known)))
    offsets = np.zeros(len(chains) + 1, np.int64)
    np.cumsum([len(chain) for chain in chains], out=offsets[1:])
    return offsets, np.array(nodes, np.int64)
