"""What a sequence's tokens are, without storing them.

A sequence's content is a list of *segments*. Each segment has a key that stands for every token up
to its end: two sequences whose position ``p`` lies in segments of the same key have the same tokens at
``0..p``. Shared prompt blocks get the key of their trie node, everything else a key of its own, so
equality of keys is equality of content and no hash can collide.

    content of r1   [ node 0 | node 1 | node 7 | private r1 ............ ]
    content of r2   [ node 0 | node 1 | node 9 | private r2 ............ ]
                       shared     shared  ^ differ from here on

What is computed from equal tokens differs with the adapter they are computed by, the media they stand for,
and the salt that a client gives: the *scope* of a sequence, a string, empty by default. Equal tokens of two
scopes have equal ids and share nothing.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from hashlib import blake2b
from typing import NewType

import numpy as np
import numpy.typing as npt

Int64Array = npt.NDArray[np.int64]
PrefixKey = NewType("PrefixKey", int)
"""Identity of the first ``end`` tokens of a sequence: ``scope << 64 | segment key << 32 | end``.

Exact, not a hash; the scope is 0 where there is none, else the bytes of its text as a number, after a 1.
"""

_END_BITS = 32
_SCOPE_BITS = 64
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_SHIFTS = (np.uint64(30), np.uint64(27), np.uint64(31))


def mix64(values: Int64Array) -> Int64Array:
    """Return the splitmix64 finaliser of each value, shape kept.

    Source: Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014.
    """
    mixed = values.astype(np.uint64) + _GOLDEN
    mixed = (mixed ^ (mixed >> _SHIFTS[0])) * _MIX_1
    mixed = (mixed ^ (mixed >> _SHIFTS[1])) * _MIX_2
    return (mixed ^ (mixed >> _SHIFTS[2])).view(np.int64)


class TokenContent:
    """The tokens of one sequence, from position 0 to any length; the last segment never ends.

    ``keys`` are the segment keys and ``ends`` the first position after each segment but the last. ``scope``
    sets equal tokens apart.

    >>> a = TokenContent(keys=(3, 90), ends=(512,))
    >>> b = TokenContent(keys=(3, 91), ends=(512,))
    >>> a.prefix_key(512) == b.prefix_key(512), a.prefix_key(513) == b.prefix_key(513)
    (True, False)
    >>> a.prefix_key(512) == TokenContent(a.keys, a.ends, "adapter 7").prefix_key(512)
    False
    """

    __slots__ = ("_ends_array", "_keys_array", "_scope_key", "_scope_tag", "ends", "keys", "scope")

    def __init__(self, keys: tuple[int, ...], ends: tuple[int, ...], scope: str = "") -> None:
        if len(keys) != len(ends) + 1:
            raise ValueError(f"{len(keys)} segment keys need {len(keys) - 1} ends, got {len(ends)}")
        self.keys = keys
        self.ends = ends
        self.scope = scope
        self._scope_key = self._scope_tag = 0
        if scope:
            text = scope.encode("utf-8", "surrogatepass")
            self._scope_key = int.from_bytes(b"\1" + text) << _SCOPE_BITS
            self._scope_tag = int.from_bytes(blake2b(text, digest_size=8).digest(), signed=True)
        self._keys_array: Int64Array | None = None
        self._ends_array: Int64Array | None = None

    def forked(self, at: int, private_key: int) -> TokenContent:
        """Return content that equals this one before position ``at`` and is private from there on."""
        if at <= 0:
            return TokenContent((private_key,), (), self.scope)
        whole = bisect_right(self.ends, at - 1)
        return TokenContent((*self.keys[: whole + 1], private_key), (*self.ends[:whole], at), self.scope)

    def prefix_key(self, end: int) -> PrefixKey:
        """Return the identity of the first ``end`` tokens; ``end`` is at least 1."""
        return PrefixKey(self._scope_key | self.keys[bisect_right(self.ends, end - 1)] << _END_BITS | end)

    def block_keys(self, block_size: int, num_blocks: int) -> list[PrefixKey]:
        """Return the chain identity of each of the first ``num_blocks`` full blocks.

        A block's identity is the node that holds its last token, with its end: it never claims a hit
        that the trace does not show, at any ``block_size``.
        """
        return [self.prefix_key((block + 1) * block_size) for block in range(num_blocks)]

    def keys_at(self, positions: Int64Array) -> Int64Array:
        """Return the segment key at each position."""
        if self._keys_array is None or self._ends_array is None:
            self._keys_array = np.array(self.keys, np.int64)
            self._ends_array = np.array(self.ends, np.int64)
        if len(self.ends) == 0:
            return np.full(positions.shape, self.keys[0], np.int64)
        return self._keys_array[np.searchsorted(self._ends_array, positions, side="right")]

    def tags(self, start: int, stop: int) -> Int64Array:
        """Return one 64-bit tag a token for ``start..stop``: a function of (content so far, position)."""
        return mix64(self._seeds(start, stop) ^ np.int64(self._scope_tag))

    def tag_seed(self, position: int) -> int:
        """Return what `mix64` makes the tag of one position of."""
        key = self.keys[bisect_right(self.ends, position)]
        return (key << _END_BITS | position) ^ self._scope_tag

    def text_tags(self, start: int, stop: int) -> Int64Array:
        """Return one 64-bit number a token for ``start..stop`` that does not tell scopes apart."""
        return mix64(self._seeds(start, stop))

    def _seeds(self, start: int, stop: int) -> Int64Array:
        positions = np.arange(start, stop, dtype=np.int64)
        return (self.keys_at(positions) << np.int64(_END_BITS)) + positions


@dataclass(frozen=True, slots=True)
class TokenRun:
    """Tokens ``start..stop`` of a sequence: its length, its identity, and its ids only when asked."""

    content: TokenContent
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start

    @property
    def scope(self) -> str:
        """Adapter, media and salt that the tokens are computed under, as one text; empty: none."""
        return self.content.scope

    def tags(self) -> Int64Array:
        """Return one tag a token, int64[len]."""
        return self.content.tags(self.start, self.stop)

    def token_ids(self, vocabulary: int) -> Int64Array:
        """Return one token id a token, int64[len] in ``0..vocabulary``.

        Equal content gives equal ids, in every scope; different content gives independent ones.
        """
        return (self.content.text_tags(self.start, self.stop) & np.int64(2**62 - 1)) % np.int64(vocabulary)

    def block_keys(self, block_size: int) -> list[PrefixKey]:
        """Return the chain identity of every full block of ``0..stop``."""
        return self.content.block_keys(block_size, self.stop // block_size)
