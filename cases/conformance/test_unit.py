"""Which block size is meant: the manager's, the kernel's, that of a prefix key; and that no two disagree."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from kvsuite.cache.layout import Dtype, attention_layout
from kvsuite.engine.contract import Capability, Release, SupportsSlots
from kvsuite.engine.snapshot import PoolKind
from kvsuite.errors import ConfigError
from kvsuite.ledger import groups_law, units_law
from kvsuite.ledger.invariants import Violation, raise_violations
from kvsuite.replay.scheduler import SchedulerConfig
from kvsuite.trace.model import RequestId, TraceSource
from kvsuite.trace.rows import Row, trace_of
from kvsuite.trace.tokens import TokenContent, TokenRun

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kvsuite.engine.contract import Engine
    from kvsuite.plugin.replays import EngineOpener, Replayer
    from kvsuite.replay.scene import Scene

    MakeScene = Callable[..., Scene]


def opened(open_engine: EngineOpener, block_size: int, **config: Any) -> Engine:
    """Open the engine; a size is accepted everywhere or refused at the start."""
    try:
        return open_engine(block_size=block_size, num_blocks=64, **config)
    except ConfigError as refusal:
        pytest.skip(f"the engine refuses blocks of {block_size}: {refusal}")


def measured(engine: Engine, tokens: int) -> Iterator[Violation]:
    """Admit a sequence, hold the entries of its tables against the declared sizes, and let it go."""
    name, run = RequestId("measured"), TokenRun(TokenContent((tokens,), ()), 0, tokens)
    if not engine.admit(name, run, first_chunk_tokens=tokens).accepted:
        pytest.fail(f"{tokens} tokens do not fit 64 blocks of {engine.spec.pools[0].block_size}")
    for pool, snapshot in zip(engine.spec.pools, engine.snapshot(), strict=True):
        if pool.key.tier == "device":
            yield from units_law.size_measured(pool, len(snapshot.table(0)), tokens)
    engine.release(name, Release.FINISH)


@pytest.mark.requires(Capability.PAGED)
@pytest.mark.parametrize("block_size", [1, 2, 3, 4, 16, 64, 128, 256])
def test_one_block_size_everywhere(open_engine: EngineOpener, block_size: int) -> None:
    """What is in force, what pools declare and what tables show are one size, and the kernel's divides it."""
    engine = opened(open_engine, block_size)
    raise_violations(list(units_law.sizes_agree(engine.spec)))
    size = engine.spec.pools[0].block_size
    for tokens in sorted({1, max(1, size - 1), size, size + 1, 2 * size, 2 * size + 1, 5 * size}):
        raise_violations(list(measured(engine, tokens)))


@pytest.mark.requires(Capability.PAGED)
@pytest.mark.parametrize("dtype", [Dtype.FLOAT16, Dtype.BFLOAT16, Dtype.FLOAT8_E4M3], ids=str)
def test_a_page_of_one_token_is_one_token_to_the_kernel(open_engine: EngineOpener, dtype: Dtype) -> None:
    """An engine that packs two elements refuses blocks of one token, or uses two everywhere."""
    layout = attention_layout("packed", num_layers=2, kv_heads=2, head_dim=8, dtype=dtype)
    engine = opened(open_engine, 1, layout=layout)
    raise_violations(list(units_law.sizes_agree(engine.spec)))
    raise_violations(list(measured(engine, 3)))


@pytest.mark.requires(Capability.PAGED)
@pytest.mark.parametrize("block_size", [4, 16, 64])
def test_the_kernel_size_is_no_axis_of_a_shape(open_engine: EngineOpener, block_size: int) -> None:
    """The same block size with 1 to 64 heads: heads first or tokens first, the kernel's block is the same."""
    shapes = [
        attention_layout(f"h{heads}", num_layers=2, kv_heads=heads, head_dim=8) for heads in (1, 2, 8, 16, 64)
    ]
    specs = [opened(open_engine, block_size, layout=layout).spec for layout in shapes]
    for pools in zip(*(spec.pools for spec in specs), strict=True):
        raise_violations(list(units_law.kernel_size_kept(pools)))
    for spec in specs:
        raise_violations(list(units_law.sizes_agree(spec)))


@pytest.mark.requires(Capability.PREFIX_CACHE)
@pytest.mark.parametrize("extra", [-1, 0, 1])
@pytest.mark.parametrize("units", [1, 2, 3])
def test_hits_come_in_the_declared_unit(kv_scene: MakeScene, units: int, extra: int) -> None:
    """A prompt asked for again is found to its last whole unit, one token left to compute."""
    scene = kv_scene(block_size=4, num_blocks=32)
    tokens = units * units_law.hash_unit(scene.engine.spec.pools) + extra
    prompt = scene.prompts.of(("prompt", tokens))
    for name in ("first", "again"):
        admission = scene.admit(name, tokens, content=prompt)
        scene.step()
        scene.release(name)
    scene.violations += units_law.hit_unit(scene.engine.spec.pools, tokens, admission.hit_tokens)
    scene.drain()
    scene.judge()


@pytest.mark.requires(Capability.GROUPS)
@pytest.mark.parametrize("options", [{}, {"third_group": True}], ids=["two groups", "three groups"])
def test_every_group_reports_its_own_size(open_engine: EngineOpener, options: dict[str, bool]) -> None:
    """Each size is its own, and a capacity is found by search: blocks times one size is no token count."""
    layout = attention_layout("six layers", num_layers=6, kv_heads=2, head_dim=8)
    engine = opened(open_engine, 4, layout=layout, options=options)
    pools = engine.spec.pools
    raise_violations(list(units_law.sizes_agree(engine.spec)))
    for tokens in (1, 4, 5, 9, 17, 33, 65):
        raise_violations(list(measured(engine, tokens)))

    def fits(tokens: int) -> bool:
        run = TokenRun(TokenContent((0,), ()), 0, tokens)
        accepted = engine.admit(RequestId("longest"), run, first_chunk_tokens=tokens).accepted
        if accepted:
            engine.release(RequestId("longest"), Release.CANCEL)
        return accepted

    upper = 2 * max(pool.usable_blocks * pool.block_size for pool in pools)
    longest = groups_law.largest(fits, upper)
    due = min(pool.usable_blocks * pool.block_size for pool in pools if pool.kind is not PoolKind.STATE)
    raise_violations(list(groups_law.capacity(pools, longest, lambda load: [load], upper, upper)))
    assert longest == due


@pytest.mark.requires(Capability.SLOTS)
@pytest.mark.parametrize("first", [1, 3, 4, 5, 8, 20])
def test_every_token_lies_in_its_kernel_slot(kv_scene: MakeScene, first: int) -> None:
    """From (block, offset) to the kernel's slots is a bijection, through prefill, growth and windows."""
    scene = kv_scene(block_size=4, num_blocks=32, prefix_cache=False)
    assert isinstance(scene.engine, SupportsSlots)
    lengths = {"a": first, "b": 7, "c": 17}
    for name, tokens in lengths.items():
        scene.admit(name, tokens)
        check_written(scene, name, tokens)
    scene.step()
    for _ in range(9):
        for name in lengths:
            assert scene.extend(name)
            lengths[name] += 1
            check_written(scene, name, 1)
        scene.launch()
        check_slots(scene, lengths)
        scene.settle()
        check_slots(scene, lengths)
    scene.drain()
    scene.judge()


def check_written(scene: Scene, name: str, tokens: int) -> None:
    """The slots of the tokens just given are the last ones of those that are held."""
    assert isinstance(scene.engine, SupportsSlots)
    held, given = (verb(RequestId(name)) for verb in (scene.engine.read_slots, scene.engine.write_slots))
    for pool, read, written in zip(scene.engine.spec.pools, held, given, strict=True):
        if written.tolist() != read[len(read) - tokens :].tolist():
            message = f"{name} writes slots {written.tolist()}, expected the last {tokens} of {read.tolist()}"
            scene.violations.append(Violation("units", scene.step_number, str(pool.key), message))


def check_slots(scene: Scene, lengths: dict[str, int]) -> None:
    """Every slot follows from the table that a snapshot shows, and no two tokens share one."""
    assert isinstance(scene.engine, SupportsSlots)
    slots = {name: scene.engine.read_slots(RequestId(name)) for name in lengths}
    snapshots = scene.engine.snapshot()
    for index, (pool, snapshot) in enumerate(zip(scene.engine.spec.pools, snapshots, strict=True)):
        for row, name in enumerate(snapshot.request_ids):
            held = slots[name][index]
            first = lengths[name] - len(held)
            scene.violations += units_law.slots_mapped(pool, snapshot.table(row), first, held, name)
        together = np.concatenate([slots[name][index] for name in lengths])
        scene.violations += units_law.slots_distinct(pool, together)


@pytest.mark.requires(Capability.SLOTS)
@pytest.mark.parametrize("chunk", [3, 64])
def test_what_the_kernel_is_given_leads_to_what_was_written(kv_replay: Replayer, chunk: int) -> None:
    """Tokens are written and read at the engine's own indices, through chunks, growth and windows.

    An index list that is made too early, or one slot too short, leads every read to its neighbour.
    """
    shape: dict[str, Any] = {"timestamp": 0, "output_length": 24}
    rows = [Row(request_id=f"r{tokens}", input_length=tokens, **shape) for tokens in (1, 7, 18, 41)]
    trace = trace_of(rows, TraceSource("by hand", "indices"), block_size=4)
    scheduler = SchedulerConfig(max_sequences=3, max_step_tokens=chunk)
    done = kv_replay(trace, block_size=4, num_blocks=64, slots="probe", scheduler=scheduler)
    assert done.content.tokens_read > done.content.tokens_written > 0


@pytest.mark.parametrize(("before", "after"), [(16, 256), (16, 32), (128, 64)])
def test_another_size_is_named_among_the_effective_values(
    open_engine: EngineOpener, before: int, after: int
) -> None:
    """As many blocks of 256 tokens as of 16 take 16 times the bytes: the difference has a name."""
    small, large = (opened(open_engine, size).spec for size in (before, after))
    raise_violations(list(units_law.difference_named(small, large)))
    grown = [pool.pool_bytes for pool in large.pools if pool.kind is not PoolKind.STATE]
    base = [pool.pool_bytes for pool in small.pools if pool.kind is not PoolKind.STATE]
    assert [pool_bytes * before for pool_bytes in grown] == [pool_bytes * after for pool_bytes in base]
