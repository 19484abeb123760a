"""Parts of the adapter, without transformers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from kvsuite.cache.layout import model_layout
from kvsuite.engine.adapters.transformers.copies import PendingCopies
from kvsuite.engine.adapters.transformers.generations import Generation, Touched, detect
from kvsuite.engine.adapters.transformers.opening import head_dim
from kvsuite.engine.adapters.transformers.options import Options
from kvsuite.engine.adapters.transformers.slots import rows_to_slots
from kvsuite.engine.adapters.transformers.snapshots import PoolView
from kvsuite.engine.config import EngineConfig
from kvsuite.engine.snapshot import PoolKey
from kvsuite.errors import ConfigError, EngineError
from kvsuite.trace.request import RequestId

if TYPE_CHECKING:
    from collections.abc import Iterable

C = ("group_cache_managers", "_block_manager", "allocate_blocks", "fork_request")
D = ("cache_allocators", "pool", "can_store_request_tokens", "prepare_fork_request")
PARENT, CHILD, GRANDCHILD = RequestId("parent"), RequestId("child"), RequestId("grandchild")


def with_parts(*names: str) -> object:
    return SimpleNamespace(**dict.fromkeys(names))


@pytest.mark.parametrize(
    ("parts", "generation"), [(C, Generation.C), (D, Generation.D), ((*D, "block_size"), Generation.D)]
)
def test_a_generation_is_told_by_its_structure(parts: tuple[str, ...], generation: Generation) -> None:
    assert detect(with_parts(*parts), "5.99.0") is generation


@pytest.mark.parametrize("lacking", [*C, *D])
def test_an_unknown_structure_is_named_with_what_was_not_found(lacking: str) -> None:
    parts = [part for part in (*C[:2], *D) if part != lacking] if lacking in D else C[:1]
    with pytest.raises(EngineError, match=r"transformers 6\.1\.0: the structure .* is not known") as raised:
        detect(with_parts(*[part for part in parts if part != lacking]), "6.1.0")
    assert lacking in str(raised.value)


@pytest.mark.parametrize("block_size", [1, 2, 3, 4, 8, 16, 48, 256])
def test_a_stand_in_block_fills_whole_sectors(block_size: int) -> None:
    """A sector is a multiple of 128 bytes and of a block; keys and values of one float32 head are 8 bytes."""
    dim = head_dim(block_size)
    assert block_size * dim * 8 % 128 == 0
    assert dim == 1 or block_size * (dim // 2) * 8 % 128 != 0


def test_rows_of_keys_and_values_become_slots() -> None:
    """A block of 4 tokens is 8 rows, keys before values: row 17 is token 1 of block 2, slot 9."""
    assert rows_to_slots([16, 17, 40], 8, 4).tolist() == [8, 9, 20]
    assert rows_to_slots([], 8, 4).tolist() == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"windows": 4}, "unknown option 'windows'"),
        ({"window_tokens": 1}, "window_tokens is 1, expected 2 tokens or more"),
        ({"window_tokens": True}, "window_tokens is True"),
        ({"safety_margin_percent": 101}, "safety_margin_percent is 101, expected 0 to 100"),
    ],
)
def test_options_that_cannot_be(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Options.of(EngineConfig(model_layout("tiny"), 16, 8, options=options))


def test_a_pool_of_trash_blocks_alone() -> None:
    with pytest.raises(ConfigError, match="of 2 blocks 2 are for padding"):
        Options.of(EngineConfig(model_layout("tiny"), 16, 2))


def test_a_window_has_no_prefix_cache() -> None:
    options = Options.of(EngineConfig(model_layout("tiny"), 16, 8, options={"window_tokens": 32}))
    assert (options.prefix_cache, options.usable_blocks) == (False, 6)


def test_copies_are_of_tokens_and_for_those_who_need_them() -> None:
    """20 tokens in blocks 5, 6 and an empty 7: 4 are copied, also for a child that left one of its own."""
    copies = PendingCopies(PoolKey(), 16)
    copies.add(CHILD, [(6, 8), (7, 9)], [5, 6, 7], 20)
    copies.add(GRANDCHILD, [(8, 10)], [5, 8, 9], 20)
    taken = [(copy.source, copy.target, copy.num_tokens) for copy in copies.take({PARENT, GRANDCHILD}).copies]
    assert taken == [(6, 8, 4), (8, 10, 4)]
    copies.add(CHILD, [(6, 8)], [5, 6], 20)
    assert copies.take({PARENT}).copies == ()
    assert not copies


class FakeCache:
    """Six blocks, the last two trash; everything is set by hand."""

    num_blocks, trash_blocks, counts_refs = 6, (4, 5), True

    def __init__(self) -> None:
        self.touched = Touched()
        self.tables: dict[RequestId, list[int]] = {}
        self.free = [0, 1, 2, 3]
        self.cached: dict[int, None] = {}

    @property
    def num_free(self) -> int:
        return len(self.free)

    def free_ids(self) -> list[int]:
        return self.free

    def ref_count(self, block: int, *, held: bool) -> int:
        return sum(block in table for table in self.tables.values())

    def counted(self, held: Iterable[int]) -> Iterable[int]:
        return held

    def give(self, name: RequestId, *blocks: int) -> None:
        self.tables.setdefault(name, []).extend(blocks)
        self.free = [block for block in self.free if block not in blocks]
        self.touched.tables.add(name)
        self.touched.blocks.update(blocks)


def view() -> tuple[FakeCache, PoolView]:
    cache = FakeCache()
    return cache, PoolView(cache)  # type: ignore[arg-type]


def test_a_changed_snapshot_gives_what_changed() -> None:
    cache, pool = view()
    first = pool.take({}, None)
    assert (first.free.tolist(), first.never_allocatable.tolist()) == ([0, 1, 2, 3], [4, 5])
    cache.give(PARENT, 2)
    cache.give(CHILD, 2, 0)
    shot = pool.take({PARENT: 4, CHILD: 7}, first.revision)
    assert shot.since == first.revision
    assert (sorted(shot.live.tolist()), shot.free.tolist(), shot.lengths.tolist()) == ([0, 2], [], [4, 7])
    assert [shot.table(row).tolist() for row in range(2)] == [[2], [2, 0]]
    cache.give(CHILD, 3)
    shot = pool.take({PARENT: 4, CHILD: 9}, shot.revision)
    assert (shot.table_rows.tolist(), shot.table(0).tolist(), shot.live.tolist()) == ([1], [2, 0, 3], [3])
    del cache.tables[CHILD]
    cache.free.append(0)
    cache.cached[3] = None
    cache.touched.tables.add(CHILD)
    cache.touched.blocks.update((2, 0, 3))
    shot = pool.take({PARENT: 4}, shot.revision)
    assert (shot.free.tolist(), shot.cached.tolist(), shot.live.tolist()) == ([0], [3], [])
    counts = dict(zip(shot.ref_count_ids.tolist(), shot.ref_counts.tolist(), strict=True))  # type: ignore[union-attr]
    assert counts == {0: 0, 2: 1, 3: 0}


def test_a_block_that_is_lost_is_answered_in_full() -> None:
    """Released and in no list: by the changes it would be free, and the engine's count says it is not."""
    cache, pool = view()
    cache.give(PARENT, 2)
    first = pool.take({PARENT: 4}, None)
    del cache.tables[PARENT]
    cache.touched.tables.add(PARENT)
    cache.touched.blocks.add(2)
    shot = pool.take({}, first.revision)
    assert shot.is_full
    assert sorted([*shot.free.tolist(), *shot.cached.tolist()]) == [0, 1, 3]


def test_another_revision_is_answered_in_full() -> None:
    _, pool = view()
    pool.take({}, None)
    assert pool.take({}, 99).is_full
