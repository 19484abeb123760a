"""What an engine says of itself and its memory has the form of the contract, or is named."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from kvsuite.engine.contract import Capability, Engine
from kvsuite.engine.guard import GuardedEngine
from kvsuite.engine.reference import ReferenceEngine
from kvsuite.engine.snapshot import MemoryClaim, Storage
from kvsuite.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvsuite.engine.config import EngineConfig
    from kvsuite.engine.contract import EngineSpec

    Change = Callable[[EngineSpec], dict[str, Any]]
    MakeConfig = Callable[..., EngineConfig]


class Boasting(ReferenceEngine):
    """Says of itself what ``change`` makes of the truth."""

    change: Change = staticmethod(lambda spec: {})

    @property
    def spec(self) -> EngineSpec:
        return replace(self._spec, **self.change(self._spec))


def pool(**changes: Any) -> Change:
    return lambda spec: {"pools": (replace(spec.pools[0], **changes),)}


SPECS: dict[str, tuple[Change, str]] = {
    "no blocks": (pool(num_blocks=0), r"spec\.pools\[0\]\.num_blocks is 0, expected an int of 1 or more"),
    "part of a block": (pool(num_blocks=16.0), r"num_blocks is 16\.0"),
    "too many blocks": (pool(num_blocks=2**31), "at most 2147483647: ids are int32"),
    "no tokens": (pool(block_size=0), "block_size is 0"),
    "negative width": (pool(bytes_per_token=-1), "bytes_per_token is -1"),
    "nothing usable": (
        lambda s: pool(never_allocatable_blocks=s.pools[0].num_blocks)(s),
        "expected fewer than",
    ),
    "other key": (pool(key="device"), r"pools\[0\]\.key is 'device', expected a PoolKey"),
    "no pools": (lambda s: {"pools": ()}, "expected a tuple of one PoolSpec or more"),
    "list of pools": (lambda s: {"pools": list(s.pools)}, "expected a tuple"),
    "one pool twice": (lambda s: {"pools": s.pools * 2}, "pools has device/g0/r0 twice"),
    "named capability": (lambda s: {"capabilities": frozenset({"FORK"})}, "a frozenset of Capability"),
    "no name": (lambda s: {"name": ""}, "name is empty"),
    "unprintable name": (lambda s: {"name": "a\0b"}, "printable text"),
    "no version": (lambda s: {"version": None}, "version is None"),
    "adapter of text": (lambda s: {"adapter_version": "1"}, "adapter_version is '1', expected an int"),
    "float value": (lambda s: {"effective": {"rate": 0.5}}, "effective is .*, expected a mapping"),
    "not even a field": (lambda s: {"no_such_field": 1}, "Boasting raised TypeError when asked for its spec"),
}


@pytest.mark.parametrize("name", SPECS)
def test_a_spec_that_cannot_be_is_named(
    name: str, make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    change, says = SPECS[name]
    monkeypatch.setattr(Boasting, "change", staticmethod(change))
    with pytest.raises(EngineError, match=says):
        GuardedEngine(Boasting(make_config()))


def test_a_spec_that_changes_is_named(make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    guarded = GuardedEngine(Boasting(make_config()))
    guarded.check_spec_is_constant()
    monkeypatch.setattr(Boasting, "change", staticmethod(lambda spec: {"version": "2"}))
    with pytest.raises(EngineError, match="engine 'reference' changed its spec while it ran"):
        guarded.check_spec_is_constant()


CLAIM = MemoryClaim((Storage("pool", 1, 64),), 64)
CLAIMS: dict[str, tuple[Any, str]] = {
    "none": (None, "memory with None, expected a MemoryClaim"),
    "part of a byte": (replace(CLAIM, claimed_cache_bytes=1.5), "whole bytes"),  # type: ignore[arg-type]
    "other role": (replace(CLAIM, storages=(Storage("cache", 1, 64),)), "role is pool, tables or workspace"),
    "negative": (replace(CLAIM, storages=(Storage("pool", 1, -64),)), "0 or more"),
    "a number": (replace(CLAIM, storages=(5,)), "a Storage"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("name", CLAIMS)
def test_a_memory_claim_that_is_none_is_named(
    name: str, make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim, says = CLAIMS[name]
    capable = {"capabilities": frozenset({Capability.MEMORY})}
    monkeypatch.setattr(Boasting, "change", staticmethod(lambda spec: capable))
    monkeypatch.setattr(Boasting, "memory", lambda self: claim, raising=False)
    with pytest.raises(EngineError, match=says):
        GuardedEngine(Boasting(make_config())).memory()


def test_the_guard_is_an_engine(make_config: MakeConfig) -> None:
    assert isinstance(GuardedEngine(ReferenceEngine(make_config())), Engine)
