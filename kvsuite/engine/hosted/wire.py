"""How two processes of the suite talk: length-prefixed pickles over a pair of pipes.

Both ends are the suite's own and start from the same source, which is what pickle asks for. NumPy differs
between them, so arrays travel as dtype, shape and bytes, and only classes of kvsuite are taken in: an engine
that answers with an object of its own is told so, instead of being imported here.
"""

from __future__ import annotations

import copyreg
import io
import os
import pickle
import select
import time
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from collections.abc import Callable

OK, ERROR, PART = b"o", b"e", b"p"
"""First byte of an answer: the last one, one to raise, one of several."""
_PREFIX_BYTES = 8
_READ_BYTES = 1 << 20
_TICK_S = 0.5
"""How often the other end is looked after while it is silent: a child of it may keep its pipes open."""
_BUILTINS = {"bytearray", "complex", "dict", "frozenset", "range", "set", "slice"}


def dumps(value: object) -> bytes:
    """Return ``value`` as bytes.

    **Raises:** `TypeError` naming what cannot travel.
    """
    file = io.BytesIO()
    try:
        _Pickler(file, 5).dump(value)
    except Exception as error:
        raise TypeError(f"it holds what cannot be sent: {error}") from error
    return file.getvalue()


def loads(text: bytes) -> Any:
    """Return what `dumps` was given.

    **Raises:** `TypeError` for a class that is none of kvsuite's.
    """
    try:
        return _Unpickler(io.BytesIO(text)).load()
    except Exception as error:
        raise TypeError(str(error)) from error


def _array(dtype: str, shape: tuple[int, ...], content: bytes) -> npt.NDArray[Any]:
    return np.frombuffer(content, dtype).reshape(shape)


def _scalar(dtype: str, content: bytes) -> Any:
    return np.frombuffer(content, dtype)[0]


def _reduced_array(array: npt.NDArray[Any]) -> tuple[Any, ...]:
    if array.dtype.hasobject:
        raise TypeError(f"an array of {array.dtype}")
    return _array, (array.dtype.str, array.shape, array.tobytes())


def _reduced_scalar(value: np.generic) -> tuple[Any, ...]:
    return _scalar, (value.dtype.str, value.tobytes())


class _Pickler(pickle.Pickler):
    dispatch_table = {  # noqa: RUF012 (an attribute of instances too, in the base class)
        **copyreg.dispatch_table,
        MappingProxyType: lambda mapping: (dict, (dict(mapping),)),
        np.ndarray: _reduced_array,
        **dict.fromkeys({np.dtype(code).type for code in "?bBhHiIlLqQefd"}, _reduced_scalar),
    }


class _Unpickler(pickle.Unpickler):
    _classes: ClassVar[dict[tuple[str, str], Any]] = {}

    def find_class(self, module: str, name: str) -> Any:
        found = self._classes.get((module, name))
        if found is None:
            ours = module.partition(".")[0] == "kvsuite"
            if not ours and not (module == "builtins" and name in _BUILTINS):
                raise TypeError(f"{module}.{name} is no part of the contract")
            found = self._classes[module, name] = super().find_class(module, name)
        return found


class Channel:
    """One end of the line: reads from one descriptor and writes to another.

    A ``deadline_s`` is a time of `time.monotonic`; ``None`` waits for ever.
    """

    def __init__(self, reader: int, writer: int) -> None:
        self._reader = reader
        self._writer = writer
        self._buffer = bytearray()

    def send(self, message: bytes, deadline_s: float | None = None) -> None:
        """Send what `dumps` returned.

        **Raises:** `BrokenPipeError` when the other end is gone; `TimeoutError`.
        """
        rest = memoryview(len(message).to_bytes(_PREFIX_BYTES, "little") + message)
        while rest:
            if deadline_s is not None:
                self._wait(self._writer, select.POLLOUT, deadline_s, None)
            # At most what a pipe that is ready takes without blocking.
            rest = rest[os.write(self._writer, rest[: select.PIPE_BUF] if deadline_s is not None else rest) :]

    def receive(self, deadline_s: float | None = None, alive: Callable[[], bool] | None = None) -> bytes:
        """Return the next message, for `loads`; ``alive`` is asked now and then while nothing comes.

        **Raises:** `EOFError` when the other end is gone; `TimeoutError`.
        """
        self._fill(_PREFIX_BYTES, deadline_s, alive)
        size = int.from_bytes(self._buffer[:_PREFIX_BYTES], "little")
        self._fill(_PREFIX_BYTES + size, deadline_s, alive)
        message = bytes(self._buffer[_PREFIX_BYTES : _PREFIX_BYTES + size])
        del self._buffer[: _PREFIX_BYTES + size]
        return message

    def has_news(self) -> bool:
        """Return whether a message, or the end, can be read at once."""
        return bool(self._buffer) or self._ready(self._reader, select.POLLIN, 0)

    def close(self) -> None:
        """Close both descriptors."""
        os.close(self._reader)
        os.close(self._writer)

    def _fill(self, size: int, deadline_s: float | None, alive: Callable[[], bool] | None) -> None:
        while len(self._buffer) < size:
            if deadline_s is not None:
                self._wait(self._reader, select.POLLIN, deadline_s, alive)
            found = os.read(self._reader, _READ_BYTES)
            if not found:
                raise EOFError
            self._buffer += found

    @staticmethod
    def _wait(descriptor: int, event: int, deadline_s: float, alive: Callable[[], bool] | None) -> None:
        while True:
            left_s = deadline_s - time.monotonic()
            if Channel._ready(descriptor, event, max(0.0, min(left_s, _TICK_S))):
                return
            if alive is not None and not alive():
                raise EOFError
            if left_s <= 0:
                raise TimeoutError

    @staticmethod
    def _ready(descriptor: int, event: int, wait_s: float) -> bool:
        poll = select.poll()  # unlike select, for any number of descriptors
        poll.register(descriptor, event)
        return bool(poll.poll(wait_s * 1000))
