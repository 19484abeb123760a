"""Pages of token slots, shared by the hash of what they hold. Nothing here knows of kvsuite.

A *stream* is one sequence under a name. Page 0 is the null page: padding is written there, and no stream
ever owns it. A page of a prompt is sealed once it is full and written: from then on it can be found by its
hash, and when its last stream closes it stays to be found until its room is needed. Pages that are still
being written are never shared: `duplicate` copies one.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict, deque
from dataclasses import dataclass, field
from hashlib import blake2b

NULL_PAGE = 0


class PoolFull(Exception):
    """There is no room for a new stream."""

    def __init__(self, wanted: int, free: int, idle: int, owed: int, pages: int) -> None:
        super().__init__(f"{wanted} pages wanted, {free} free, {idle} idle, {owed} of them owed")
        self.wanted, self.free, self.idle, self.owed, self.pages = wanted, free, idle, owed, pages


@dataclass(slots=True)
class Stream:
    """One sequence: its token ids, how many are its prompt and how many have slots, its pages in order."""

    tokens: array[int]
    prompt: int
    filled: int
    pages: list[int]
    salt: bytes = b""
    """What its pages' hashes begin from: equal tokens of two salts are never the same page."""
    sealed: int = 0
    owed: int = 0
    """Pages that the rest of its prompt will take."""
    hashes: list[bytes] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class PendingCopy:
    """Copy the first ``tokens`` slots of page ``source`` to ``target``, a page of stream ``name``."""

    source: int
    target: int
    tokens: int
    name: str


class PageManager:
    """Hands ``pages`` pages of ``page_tokens`` tokens to streams; the first page is the null page."""

    def __init__(self, pages: int, page_tokens: int, *, share: bool = True) -> None:
        self.page_tokens, self.share = page_tokens, share
        self.streams: dict[str, Stream] = {}
        self.holders = [0] * pages
        self.free = deque(range(NULL_PAGE + 1, pages))
        self.idle: OrderedDict[int, None] = OrderedDict()
        """Sealed pages that no stream holds, the one to go first in front."""
        self._by_hash: dict[bytes, int] = {}
        self._hash_of: dict[int, bytes] = {}
        self._copies: dict[int, PendingCopy] = {}

    def open(self, name: str, tokens: bytes, first: int, salt: bytes = b"") -> int:
        """Start a stream with a prompt of int64 ids; what is found and ``first`` tokens more get slots.

        Returns how many tokens were found; the last one is never among them. **Raises:** `PoolFull`.
        """
        prompt = array("q", tokens)
        hashes = self._hashes(prompt, [], salt) if self.share else []
        found = self._find(hashes[: (len(prompt) - 1) // self.page_tokens])
        wanted = self.pages_for(len(prompt)) - len(found)
        idle = len(self.idle) - sum(page in self.idle for page in found)
        owed = sum(stream.owed for stream in self.streams.values())
        if wanted > len(self.free) + idle - owed:
            raise PoolFull(wanted, len(self.free), idle, owed, self.pages_for(len(prompt)))
        self._hold(found)
        known = len(found) * self.page_tokens
        filled = min(len(prompt), known + first)
        new = self.pages_for(filled) - len(found)
        stream = Stream(
            prompt, len(prompt), filled, found + self._take(new), salt, len(found), wanted - new, hashes
        )
        self.streams[name] = stream
        return known

    def append(self, name: str, tokens: bytes) -> bool:
        """Give slots to the next int64 ids of a stream: to all, or to none and False."""
        stream = self.streams[name]
        ids = array("q", tokens)
        new = self.pages_for(stream.filled + len(ids)) - len(stream.pages)
        if new > len(self.free) + len(self.idle):
            return False
        stream.pages += self._take(new)
        stream.owed = max(0, stream.owed - new)
        stream.tokens[stream.filled : stream.filled + len(ids)] = ids
        stream.filled += len(ids)
        return True

    def duplicate(self, name: str, copy: str) -> bool:
        """Start ``copy`` where ``name`` stands: full pages are shared, a part-full one is copied now."""
        stream = self.streams[name]
        written = stream.filled % self.page_tokens
        if written and not (self.free or self.idle):
            return False
        pages = list(stream.pages)
        whole = pages[:-1] if written else pages
        self._hold(whole)
        if written:
            (target,) = self._take(1)
            before = self._copies.get(pages[-1])
            source = before.source if before else pages[-1]
            self._copies[target] = PendingCopy(source, target, written, copy)
            pages[-1] = target
        full = len(whole)
        tokens = stream.tokens[: stream.filled]
        self.streams[copy] = Stream(
            tokens,
            stream.prompt,
            stream.filled,
            pages,
            stream.salt,
            min(stream.sealed, full),
            0,
            stream.hashes[:full],
        )
        return True

    def close(self, name: str) -> None:
        """End a stream; its last page is the first to lose what it holds."""
        for page in reversed(self.streams.pop(name).pages):
            self._drop(page)

    def seal(self, name: str, filled: int) -> None:
        """Learn that the first ``filled`` tokens are written: from now on the prompt's pages may be found."""
        stream = self.streams[name]
        filled = min(filled, stream.prompt)
        if not self.share or filled // self.page_tokens <= stream.sealed:
            return
        stream.hashes = self._hashes(stream.tokens, stream.hashes, stream.salt)
        for at in range(stream.sealed, filled // self.page_tokens):
            page, digest = stream.pages[at], stream.hashes[at]
            if digest not in self._by_hash and page not in self._hash_of:
                self._by_hash[digest], self._hash_of[page] = page, digest
        stream.sealed = filled // self.page_tokens

    def copies(self) -> tuple[PendingCopy, ...]:
        """Return, once, the copies to be made before anything else is written."""
        pending = tuple(self._copies.values())
        self._copies.clear()
        return pending

    def forget_idle(self) -> None:
        """Empty every page that no stream holds."""
        while self.idle:
            self.free.append(self._evict())

    def pages_for(self, tokens: int) -> int:
        """Return how many pages ``tokens`` tokens need."""
        return -(-tokens // self.page_tokens)

    def _hashes(self, tokens: array[int], known: list[bytes], salt: bytes) -> list[bytes]:
        hashes, size = list(known), self.page_tokens
        for at in range(len(known), len(tokens) // size):
            before = hashes[-1] if hashes else blake2b(salt, digest_size=16).digest()
            page = tokens[at * size : (at + 1) * size].tobytes()
            hashes.append(blake2b(before + page, digest_size=16).digest())
        return hashes

    def _find(self, hashes: list[bytes]) -> list[int]:
        found: list[int] = []
        for digest in hashes:
            if digest not in self._by_hash:
                break
            found.append(self._by_hash[digest])
        return found

    def _hold(self, pages: list[int]) -> None:
        for page in pages:
            self.holders[page] += 1
            self.idle.pop(page, None)

    def _take(self, count: int) -> list[int]:
        taken = [self.free.popleft() if self.free else self._evict() for _ in range(count)]
        self._hold(taken)
        return taken

    def _evict(self) -> int:
        page, _ = self.idle.popitem(last=False)
        del self._by_hash[self._hash_of.pop(page)]
        return page

    def _drop(self, page: int) -> None:
        self.holders[page] -= 1
        if self.holders[page]:
            return
        self._copies.pop(page, None)
        if page in self._hash_of:
            self.idle[page] = None
        else:
            self.free.append(page)
