"""Keyword arguments by signature: what a release does not know is left out, what it asks for is named."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest

from kvsuite.engine.adapters.keywords import known, takes
from kvsuite.errors import EngineError


def older(size: int, *, caching: bool = True) -> tuple[int, bool]:
    return size, caching


def newer(size: int, in_flight_tokens: int, caching: bool = True, watermark: float = 0.0) -> None:
    del size, in_flight_tokens, caching, watermark


class Pool:
    def __init__(self, num_blocks: int, events: bool = False) -> None:
        self.num_blocks = num_blocks
        self.events = events

    def take(self, count: int, reserved: int = 0) -> int:
        return count + reserved


def test_what_a_function_does_not_take_is_left_out() -> None:
    assert known(older, size=4, caching=False, watermark=0.5) == {"size": 4, "caching": False}
    assert older(**known(older, size=4, watermark=0.5)) == (4, True)


def test_what_is_not_given_and_has_a_default_keeps_it() -> None:
    assert known(newer, size=1, in_flight_tokens=2) == {"size": 1, "in_flight_tokens": 2}


def test_a_required_parameter_nobody_knows_is_named() -> None:
    with pytest.raises(EngineError, match=r"newer asks for in_flight_tokens, .*it gives size, caching"):
        known(newer, size=1, caching=True)


def test_an_argument_called_function_is_an_argument() -> None:
    def hashed(function: str) -> str:
        return function

    assert known(hashed, function="sha256", size=1) == {"function": "sha256"}


def test_classes_and_bound_methods_are_asked_without_self() -> None:
    assert known(Pool, num_blocks=3, block_size=4) == {"num_blocks": 3}
    assert known(Pool(3).take, count=1, reserved=2, other=3) == {"count": 1, "reserved": 2}
    with pytest.raises(EngineError, match="asks for num_blocks"):
        known(Pool)


def test_a_function_of_any_keyword_takes_all() -> None:
    def any_of(size: int, **options: Any) -> int:
        return size + len(options)

    assert known(any_of, size=1, watermark=0) == {"size": 1, "watermark": 0}


def test_whether_a_parameter_is_there() -> None:
    assert takes(newer, "watermark")
    assert not takes(older, "watermark")
    assert takes(Pool(1).take, "reserved")


def test_asking_keeps_nobody_alive() -> None:
    pool = Pool(1)
    known(pool.take, count=1)
    takes(pool.take, "reserved")
    gone = weakref.ref(pool)
    del pool
    gc.collect()
    assert gone() is None
