"""What an engine says of itself must have the form of the contract; whether it is true, the ledger judges."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING

from kvsuite.engine.contract import Capability, EngineSpec
from kvsuite.engine.snapshot import MAX_BLOCKS, PoolKey, PoolSpec
from kvsuite.errors import EngineError, KvsuiteError

if TYPE_CHECKING:
    from kvsuite.engine.contract import Engine, RequestEngine

_LEAST = {
    "num_blocks": 1,
    "block_size": 1,
    "bytes_per_token": 1,
    "pad_bytes_per_block": 0,
    "never_allocatable_blocks": 0,
    "table_entry_bytes": 0,
}


def is_a(value: object, *types: type) -> bool:
    """Return whether ``value`` is of one of ``types``, whatever its annotation promises."""
    return isinstance(value, types)


def whole(value: object) -> bool:
    """Return whether ``value`` is an ``int`` of Python, and not a bool."""
    return isinstance(value, int) and not isinstance(value, bool)


def spec_of(engine: Engine | RequestEngine) -> EngineSpec:
    """Return who an engine says it is.

    **Raises:** `EngineError` that names the field, what it holds and what the contract asks for.
    """
    try:
        spec: object = engine.spec
    except KvsuiteError:
        raise
    except Exception as error:
        raise EngineError(
            f"{type(engine).__name__} raised {type(error).__name__} when asked for its spec: {error}"
        ) from error
    if not isinstance(spec, EngineSpec):
        raise EngineError(f"the spec of {type(engine).__name__} is {spec!r}, expected an EngineSpec")
    for field, expected in _faults(spec):
        raise EngineError(f"engine {spec.name!r}: spec.{field}, expected {expected}")
    return spec


def _faults(spec: EngineSpec) -> Iterator[tuple[str, str]]:
    for field in ("name", "version", "layout", "dtype"):
        value = getattr(spec, field)
        if not isinstance(value, str) or not (value.isprintable() or field == "layout"):
            yield f"{field} is {value!r}", "printable text"
    if not spec.name:
        yield "name is empty", "the name goldens are kept under"
    if not whole(spec.adapter_version):
        yield f"adapter_version is {spec.adapter_version!r}", "an int"
    claimed: object = spec.capabilities
    if not isinstance(claimed, AbstractSet) or not all(isinstance(c, Capability) for c in claimed):
        yield f"capabilities is {claimed!r}", "a frozenset of Capability"
    elif Capability.COPIES_ITSELF in claimed and Capability.COPY_ON_WRITE not in claimed:
        yield "capabilities holds COPIES_ITSELF", "COPY_ON_WRITE beside it, which says what is copied"
    if not _is_mapping(spec.effective, (int, str, bool)):
        yield f"effective is {spec.effective!r}", "a mapping of str to int, str or bool"
    if not _is_mapping(spec.provenance, (str,)):
        yield f"provenance is {spec.provenance!r}", "a mapping of str to str"
    yield from _pool_faults(spec.pools)


def _pool_faults(pools: object) -> Iterator[tuple[str, str]]:
    if not isinstance(pools, tuple) or not pools or not all(isinstance(pool, PoolSpec) for pool in pools):
        yield f"pools is {pools!r}", "a tuple of one PoolSpec or more"
        return
    for at, pool in enumerate(pools):
        if not isinstance(pool.key, PoolKey):
            yield f"pools[{at}].key is {pool.key!r}", "a PoolKey"
        for field, least in _LEAST.items():
            value = getattr(pool, field)
            if not whole(value) or value < least:
                yield f"pools[{at}].{field} is {value!r}", f"an int of {least} or more"
        if pool.num_blocks > MAX_BLOCKS:
            yield f"pools[{at}].num_blocks is {pool.num_blocks}", f"at most {MAX_BLOCKS}: ids are int32"
        if pool.usable_blocks < 1:
            yield (
                f"pools[{at}].never_allocatable_blocks is {pool.never_allocatable_blocks}",
                f"fewer than its {pool.num_blocks} blocks",
            )
    twice = [str(key) for key, count in Counter(pool.key for pool in pools).items() if count > 1]
    if twice:
        yield f"pools has {twice[0]} twice", "each key once"


def _is_mapping(values: object, types: tuple[type, ...]) -> bool:
    return isinstance(values, Mapping) and all(
        isinstance(key, str) and isinstance(value, types) for key, value in values.items()
    )
