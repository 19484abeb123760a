"""Prefix identity (I8): what may be found, what must be found, and how many prefixes there can be.

Nothing here asks an engine for its keys. `ComputedPrefixes` remembers which prefixes have been written by
somebody, by their exact identity; a hit is held against it::

    upper   hit <= n - 1, in whole blocks, and every block of it computed by somebody before
    lower   floor((min(n - 1, computed)) / unit) * unit, as long as no block had to be given up

Whether the block found *still* holds what was computed is seen by reading it (``content``).
Sources: openvino.genai #3722, nano-vllm #163, #243, vllm #4764, #44237, text-generation-inference #2489,
ATOM #902, kvcached #451.
"""

from __future__ import annotations

from math import lcm
from typing import TYPE_CHECKING

from kvsuite.engine.snapshot import PoolKind
from kvsuite.ledger.invariants import Violation

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from kvsuite.engine.snapshot import PoolKey, PoolSpec
    from kvsuite.trace.model import RequestId
    from kvsuite.trace.tokens import PrefixKey, TokenContent, TokenRun


def hit_unit(pools: Iterable[PoolSpec]) -> int:
    """Return the tokens that hits come in: the smallest length that is whole keys in every group."""
    return lcm(
        *(
            pool.hash_block_size or pool.block_size
            for pool in pools
            if pool.kind is not PoolKind.STATE and pool.key.tier == "device"
        )
    )


class ComputedPrefixes:
    """Every prefix of ``unit`` tokens, and multiples of it, that some sequence has written whole.

    >>> from kvsuite.trace.tokens import TokenContent, TokenRun
    >>> computed = ComputedPrefixes(4)
    >>> computed.written(TokenContent((3, 5), (8,)), 0, 11)
    >>> [computed.longest(TokenRun(TokenContent((3, 9), (8,)), 0, n)) for n in (4, 5, 8, 9, 20)]
    [0, 4, 4, 8, 8]
    """

    def __init__(self, unit: int, known: ComputedPrefixes | None = None) -> None:
        self.unit = unit
        self._keys: set[PrefixKey] = set() if known is None else set(known._keys)

    def written(self, content: TokenContent, start: int, stop: int) -> None:
        """Learn that tokens ``start..stop`` of a sequence are computed, those before it being so already."""
        first = start // self.unit + 1
        self._keys.update(content.prefix_key(end * self.unit) for end in range(first, stop // self.unit + 1))

    def longest(self, prompt: TokenRun) -> int:
        """Return how many tokens of ``prompt`` could be found at most: ``n - 1``, in whole units."""
        found = 0
        for end in range(self.unit, prompt.stop, self.unit):
            if prompt.content.prefix_key(end) not in self._keys:
                break
            found = end
        return found


def hits_computed(
    pool: PoolKey, name: str, prompt: TokenRun, hit_tokens: int, computed: ComputedPrefixes, step: int
) -> Iterator[Violation]:
    """Yield a hit of part of a block, or of more than anybody has computed: publish after compute."""
    longest = computed.longest(prompt)
    if hit_tokens % computed.unit or not 0 <= hit_tokens <= longest:
        message = (
            f"{hit_tokens} of the {prompt.stop} tokens of {name} were found, of which {longest} have been "
            f"computed, in whole blocks of {computed.unit} and but for the last token"
        )
        yield Violation("keys", step, str(pool), message)


def hits_kept(
    pool: PoolKey, name: str, prompt: TokenRun, hit_tokens: int, computed: ComputedPrefixes, step: int
) -> Iterator[Violation]:
    """Yield a computed prefix that was not found; only for pools that had no block to give up since."""
    longest = computed.longest(prompt)
    if hit_tokens < longest:
        message = f"{hit_tokens} of the {prompt.stop} tokens of {name} were found, expected {longest}"
        yield Violation("hits", step, str(pool), f"{message}: nothing was evicted since they were computed")


def map_fits(pool: PoolSpec, found_blocks: int, step: int) -> Iterator[Violation]:
    """Yield when more blocks' worth of different prefixes can be found at once than the pool has blocks.

    ``|map| <= N``: what a map holds beyond that points to blocks that hold something else by now.
    """
    if found_blocks > pool.usable_blocks:
        message = (
            f"{found_blocks} different blocks can be found in a pool of {pool.usable_blocks} usable ones"
        )
        yield Violation("keys", step, str(pool.key), message)


def cached_full(pool: PoolSpec, cached_blocks: int, computed_tokens: int, step: int) -> Iterator[Violation]:
    """Yield when more blocks are cached than one sequence of ``computed_tokens`` has filled.

    ``|C| <= floor(n / b)``: only a full block has a key, and without one its content cannot be found.
    """
    full = computed_tokens // pool.block_size
    if cached_blocks > full:
        message = (
            f"{cached_blocks} blocks are cached, of which {full} were filled: a part-full one has no key, "
            "and is free"
        )
        yield Violation("keys", step, str(pool.key), message)


def shared_alike(
    pool: PoolSpec,
    tables: Mapping[RequestId, Sequence[int]],
    contents: Mapping[RequestId, TokenContent],
    lengths: Mapping[RequestId, int],
    step: int,
    *,
    null_ids: Collection[int] = (),
) -> Iterator[Violation]:
    """Yield blocks of which two holders do not hold the same tokens at the same place.

    Two sequences may name a block only as the same entry, and only with equal content up to the end of what
    both of them have in it.
    """
    size = pool.block_size
    owners: dict[int, tuple[RequestId, int]] = {}
    for name, table in tables.items():
        for entry, block in enumerate(table[: -(-lengths[name] // size)]):
            if block in null_ids:
                continue
            other, place = owners.setdefault(block, (name, entry))
            if other == name and place == entry:
                continue
            end = min((entry + 1) * size, lengths[name], lengths[other])
            alike = place == entry and contents[name].prefix_key(end) == contents[other].prefix_key(end)
            if not alike:
                message = (
                    f"block {block} is entry {entry} of {name} and entry {place} of {other}, and their first "
                    f"{end} tokens are not the same"
                )
                yield Violation("keys", step, str(pool.key), message)
