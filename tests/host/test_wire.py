"""What travels between two interpreters arrives as it was; what cannot is refused by name."""

from __future__ import annotations

import fractions
import os
import threading
import time
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

from kvsuite.engine.contract import Capability, Release
from kvsuite.engine.hosted.wire import Channel, dumps, loads
from kvsuite.engine.snapshot import PoolKey
from kvsuite.trace.tokens import TokenContent, TokenRun


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6, dtype=np.int32),
        np.arange(12, dtype=np.int64).reshape(3, 4)[:, ::2],
        np.zeros(0, np.int32),
        np.array([True, False]),
        np.array([0.5, float("inf")], np.float32),
        np.array([1, 2], ">i4"),
    ],
    ids=["int32", "strided", "empty", "bool", "float32", "big-endian"],
)
def test_an_array_keeps_dtype_shape_and_values(array: Any) -> None:
    found = loads(dumps(array))
    assert (found.dtype, found.shape, found.tolist()) == (array.dtype, array.shape, array.tolist())


def test_no_module_of_numpy_is_named() -> None:
    """Its modules are called differently from version to version."""
    assert b"numpy" not in dumps([np.arange(3), np.int64(3), np.bool_(True), np.float32(0.5)])


@pytest.mark.parametrize("value", [np.int64(-7), np.int32(5), np.bool_(True), np.float32(0.25), np.uint8(9)])
def test_a_scalar_keeps_its_type(value: Any) -> None:
    found = loads(dumps(value))
    assert (type(found), found) == (type(value), value)


def test_values_of_the_contract_arrive() -> None:
    content = TokenContent((3, 9), (16,))
    said = {
        "enums": (Release.CANCEL, frozenset({Capability.FORK})),
        "pool": PoolKey(1, "host", 2),
        "mapping": MappingProxyType({"a": 1}),
        "plain": [None, True, 2**70, 1.5, "text", b"bytes", {1, 2}],
    }
    assert loads(dumps(said)) == {**said, "mapping": {"a": 1}}
    run = loads(dumps(TokenRun(content, 2, 20)))
    assert (run.content.keys, run.content.ends, run.start, run.stop) == ((3, 9), (16,), 2, 20)


@pytest.mark.parametrize("value", [fractions.Fraction(1, 3), os.stat_result(range(10)), print, os.getcwd])
def test_a_class_of_somebody_else_is_refused(value: Any) -> None:
    with pytest.raises(TypeError, match="is no part of the contract"):
        loads(dumps(value))


@pytest.mark.parametrize("value", [lambda: None, threading.Lock(), np.array([object()])])
def test_what_cannot_travel_is_named(value: Any) -> None:
    with pytest.raises(TypeError, match="it holds what cannot be sent"):
        dumps([value])


def _pair() -> tuple[Channel, Channel]:
    here_reads, there_writes = os.pipe()
    there_reads, here_writes = os.pipe()
    return Channel(here_reads, here_writes), Channel(there_reads, there_writes)


def test_messages_come_whole_and_in_order() -> None:
    """A message of 3 MB is more than any pipe holds; an empty one is a message too."""
    here, there = _pair()
    texts = [b"first", b"", bytes(range(256)) * 12_000, b"last"]

    def send_all() -> None:
        for text in texts:
            there.send(text)

    sender = threading.Thread(target=send_all)
    sender.start()
    assert [here.receive(time.monotonic() + 20) for _ in texts] == texts
    sender.join()
    assert not here.has_news()
    there.close()
    with pytest.raises(EOFError):
        here.receive(time.monotonic() + 20)
    here.close()


def test_silence_ends_at_the_deadline_or_with_the_other_side() -> None:
    here, there = _pair()
    with pytest.raises(TimeoutError):
        here.receive(time.monotonic() + 0.01)
    with pytest.raises(EOFError):
        here.receive(time.monotonic() + 20, alive=lambda: False)
    here.close()
    with pytest.raises(BrokenPipeError):
        there.send(b"x")
    there.close()


def test_a_reader_that_takes_nothing_is_not_waited_for() -> None:
    here, there = _pair()
    with pytest.raises(TimeoutError):
        here.send(bytes(2**22), time.monotonic() + 0.05)
    here.close()
    there.close()
