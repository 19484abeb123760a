"""`PagedCache` under random traffic, against a shadow memory and against a naive twin.

The shadow memory knows nothing of blocks: it writes each token where the cache says and reads every live
token back after each operation. The naive twin keeps plain lists and recounts everything from scratch.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from kvsuite.cache.paged import Admitted, PagedCache

Tags = tuple[object, ...]


class Step(NamedTuple):
    verb: str
    who: int
    tokens: int
    chunk: int


class Setup(NamedTuple):
    num_blocks: int
    block_size: int
    prefix_cache: bool
    watermark_blocks: int


STEPS = st.lists(
    st.builds(
        Step,
        st.sampled_from(("admit", "admit", "extend", "extend", "extend", "fork", "release", "settle")),
        st.integers(0, 4),
        st.integers(1, 11),
        st.integers(1, 8),
    ),
    min_size=12,
    max_size=48,
)
SETUPS = st.builds(Setup, st.integers(2, 12), st.integers(1, 4), st.booleans(), st.integers(0, 2))


def make(setup: Setup) -> PagedCache:
    return PagedCache(
        setup.num_blocks,
        setup.block_size,
        prefix_cache=setup.prefix_cache,
        watermark_blocks=setup.watermark_blocks,
    )


def prompt_tags(who: int, tokens: int) -> Tags:
    """Prompts of two families: within one, the shorter is a prefix of the longer."""
    return tuple(("prompt", who % 2, position) for position in range(tokens))


def chain_keys(tags: Tags, size: int) -> list[Tags]:
    return [tags[: (block + 1) * size] for block in range(len(tags) // size)]


@dataclass
class Driven:
    """A cache and the content each sequence should have; prompts are computed as far as they have slots."""

    cache: PagedCache
    tags: dict[str, Tags] = field(default_factory=dict)
    memory: dict[int, object] = field(default_factory=dict)
    made: int = 0

    def apply(self, step: Step) -> bool | None:
        """Do one step; None where it does not apply, else whether it was granted."""
        live = list(self.tags)
        if step.verb == "admit":
            return self.admit(step)
        if not live:
            return None
        name = live[step.who % len(live)]
        if step.verb == "extend":
            return self.extend(name, step.chunk)
        if step.verb == "fork":
            self.made += 1
            self.cache.fork(name, f"s{self.made}")
            self.tags[f"s{self.made}"] = self.tags[name]
        elif step.verb == "release":
            self.cache.release(name)
            del self.tags[name]
        else:
            self.settle()
        return True

    def admit(self, step: Step) -> bool:
        size = self.cache.block_size
        tags = prompt_tags(step.who, step.tokens)
        name = f"s{self.made + 1}"
        answer = self.cache.admit(
            name, step.tokens, first_chunk_tokens=step.chunk, keys=chain_keys(tags, size)
        )
        if not isinstance(answer, Admitted):
            return False
        self.made += 1
        assert answer.hit_tokens % size == 0
        assert answer.hit_tokens <= step.tokens - 1
        assert answer.scheduled_tokens == min(step.tokens, answer.hit_tokens + step.chunk)
        self.tags[name] = tags[: answer.scheduled_tokens]
        self.write(name, answer.hit_tokens)
        return True

    def extend(self, name: str, count: int) -> bool:
        if not self.cache.extend(name, count):
            return False
        start = len(self.tags[name])
        self.tags[name] += tuple((name, position) for position in range(start, start + count))
        self.write(name, start)
        return True

    def write(self, name: str, start: int) -> None:
        size = self.cache.block_size
        for copy in self.cache.take_copies():
            for offset in range(copy.num_tokens):
                self.memory[copy.target * size + offset] = self.memory[copy.source * size + offset]
        for position in range(start, len(self.tags[name])):
            self.memory[self.cache.slot(name, position)] = self.tags[name][position]

    def settle(self) -> None:
        for name, tags in self.tags.items():
            published = self.cache.tables[name].published_blocks
            self.cache.publish(name, chain_keys(tags, self.cache.block_size)[published:])

    def check_content(self) -> None:
        for name, tags in self.tags.items():
            read = tuple(self.memory[self.cache.slot(name, position)] for position in range(len(tags)))
            assert read == tags

    def check_keys(self) -> None:
        """Whatever can be hit holds the end of the prefix that its key names."""
        size = self.cache.block_size
        for block, key in () if self.cache.prefixes is None else self.cache.prefixes.key_of.items():
            assert isinstance(key, tuple)
            assert tuple(self.memory[block * size + offset] for offset in range(size)) == key[-size:]


def observed(cache: PagedCache) -> dict[str, object]:
    whole = cache.pool.take_all()
    return {
        "tables": {name: (table.blocks.tolist(), table.length) for name, table in cache.tables.items()},
        "free": whole.free.tolist(),
        "idle": whole.cached.tolist(),
        "refs": list(cache.pool.ref_counts),
        "keys": {} if cache.prefixes is None else dict(cache.prefixes.key_of),
        "promised": sum(table.promised_blocks for table in cache.tables.values()),
    }


def check_laws(cache: PagedCache) -> None:
    """Partition, recount and tail slack, from ids and tables alone."""
    whole = cache.pool.take_all()
    holders = Counter(block for table in cache.tables.values() for block in table.blocks)
    everywhere = [*whole.free.tolist(), *whole.cached.tolist(), *holders]
    assert sorted(everywhere) == list(range(cache.pool.num_blocks))
    assert [holders[block] for block in range(cache.pool.num_blocks)] == list(cache.pool.ref_counts)
    for table in cache.tables.values():
        assert 0 <= len(table.blocks) * cache.block_size - table.length < cache.block_size
    if cache.prefixes is not None:
        keyed = set(cache.prefixes.key_of)
        assert set(whole.cached.tolist()) <= keyed
        assert not keyed & set(whole.free.tolist())
        assert len(cache.prefixes) == len(keyed)


@given(SETUPS, STEPS)
@settings(max_examples=150, deadline=None)
def test_every_live_token_is_where_it_was_written(setup: Setup, steps: list[Step]) -> None:
    driven = Driven(make(setup))
    for step in steps:
        before = observed(driven.cache)
        if driven.apply(step) is False:
            assert observed(driven.cache) == before, "a refused operation changed something"
        driven.check_content()
        driven.check_keys()
        check_laws(driven.cache)
    for name in list(driven.tags):
        driven.cache.release(name)
    pool = driven.cache.pool
    assert pool.num_free + pool.num_cached == setup.num_blocks
    assert driven.cache.reset_prefixes()
    assert pool.num_free == setup.num_blocks


@dataclass
class NaiveSequence:
    blocks: list[int]
    length: int
    prompt_blocks: int
    published: int


class NaiveCache:
    """The same cache with lists only: counts are recounted from tables whenever they are needed."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.free = list(range(setup.num_blocks))[::-1]
        self.idle: list[int] = []
        self.key_of: dict[int, object] = {}
        self.sequences: dict[str, NaiveSequence] = {}

    def refs(self, block: int) -> int:
        return sum(sequence.blocks.count(block) for sequence in self.sequences.values())

    def promised(self) -> int:
        return sum(max(0, s.prompt_blocks - len(s.blocks)) for s in self.sequences.values())

    def blocks_of(self, tokens: int) -> int:
        return len(range(0, tokens, self.setup.block_size))

    def admit(self, name: str, tokens: int, chunk: int, keys: list[Tags]) -> bool:
        hits = []
        for key in keys[: (tokens - 1) // self.setup.block_size]:
            found = [block for block, known in self.key_of.items() if known == key]
            if not found or not self.setup.prefix_cache:
                break
            hits += found
        needed = self.blocks_of(tokens) - len(hits)
        room = len(self.free) + len([block for block in self.idle if block not in hits]) - self.promised()
        if needed + (self.setup.watermark_blocks if self.sequences else 0) > room:
            return False
        self.idle = [block for block in self.idle if block not in hits]
        length = min(tokens, len(hits) * self.setup.block_size + chunk)
        new = self.take(self.blocks_of(length) - len(hits))
        self.sequences[name] = NaiveSequence(hits + new, length, self.blocks_of(tokens), len(hits))
        return True

    def extend(self, name: str, tokens: int) -> bool:
        sequence = self.sequences[name]
        tail = sequence.blocks[-1]
        copies = sequence.length % self.setup.block_size != 0 and self.refs(tail) > 1
        new = self.blocks_of(sequence.length + tokens) - len(sequence.blocks)
        if new + copies > len(self.free) + len(self.idle):
            return False
        if copies:
            sequence.blocks[-1:] = self.take(1)
        sequence.blocks += self.take(new)
        sequence.length += tokens
        return True

    def take(self, count: int) -> list[int]:
        taken = []
        for _ in range(count):
            block = self.free.pop() if self.free else self.idle.pop(0)
            self.key_of.pop(block, None)
            taken.append(block)
        return taken

    def fork(self, parent: str, child: str) -> None:
        old = self.sequences[parent]
        self.sequences[child] = NaiveSequence(list(old.blocks), old.length, 0, old.published)

    def release(self, name: str) -> None:
        for block in self.sequences.pop(name).blocks[::-1]:
            if self.refs(block) == 0:
                (self.idle if block in self.key_of else self.free).append(block)

    def settle(self, tags: dict[str, Tags]) -> None:
        if not self.setup.prefix_cache:
            return
        for name, sequence in self.sequences.items():
            keys = chain_keys(tags[name], self.setup.block_size)
            for block, key in list(zip(sequence.blocks, keys, strict=False))[sequence.published :]:
                if block not in self.key_of and key not in self.key_of.values():
                    self.key_of[block] = key
            sequence.published = max(sequence.published, len(keys))

    def observed(self) -> dict[str, object]:
        return {
            "tables": {name: (s.blocks, s.length) for name, s in self.sequences.items()},
            "free": self.free,
            "idle": self.idle,
            "refs": [self.refs(block) for block in range(self.setup.num_blocks)],
            "keys": self.key_of,
            "promised": self.promised(),
        }


@given(SETUPS, STEPS)
@settings(max_examples=150, deadline=None)
def test_tables_free_list_and_eviction_order_are_those_of_a_naive_twin(
    setup: Setup, steps: list[Step]
) -> None:
    driven, naive = Driven(make(setup)), NaiveCache(setup)
    for step in steps:
        live, made, tags = list(driven.tags), driven.made, dict(driven.tags)
        granted = driven.apply(step)
        name = live[step.who % len(live)] if live else ""
        if step.verb == "admit":
            keys = chain_keys(prompt_tags(step.who, step.tokens), setup.block_size)
            assert naive.admit(f"s{made + 1}", step.tokens, step.chunk, keys) is granted
        elif live:
            if step.verb == "extend":
                assert naive.extend(name, step.chunk) is granted
            elif step.verb == "fork":
                naive.fork(name, f"s{made + 1}")
            elif step.verb == "release":
                naive.release(name)
            else:
                naive.settle(tags)
        assert observed(driven.cache) == naive.observed()
