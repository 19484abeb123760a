"""The examples in the docstrings run as they stand."""

import doctest
import importlib

import pytest

MODULES = (
    "kvsuite.cache.block_pool",
    "kvsuite.cache.block_table",
    "kvsuite.cache.layout",
    "kvsuite.cache.paged",
    "kvsuite.cache.prefix_cache",
    "kvsuite.engine.contiguous.controls",
    "kvsuite.engine.contiguous.holes",
    "kvsuite.trace.tokens",
)


@pytest.mark.parametrize("name", MODULES)
def test_examples_hold(name: str) -> None:
    results = doctest.testmod(importlib.import_module(name))
    assert results.attempted > 0, f"{name} has no example left"
    assert results.failed == 0
