"""JSON lines decoded row by row; every error names its line and path."""

from __future__ import annotations

import json
import re
from collections import Counter
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import msgspec

from kvsuite.errors import TraceError
from kvsuite.trace.readers.source import cut_off
from kvsuite.trace.rows import is_time

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvsuite.trace.readers.source import TraceFile

RowT = TypeVar("RowT", bound=msgspec.Struct)

EXTENSION = "x_"
"""Keys that start so are anyone's, and are read past."""

_NOT_JSON = (msgspec.DecodeError, UnicodeDecodeError, InvalidOperation, RecursionError)
_PLACE = re.compile(r"^(?P<what>.*?)(?: - at `(?P<path>[^`]*)`)?$", re.DOTALL)
_EXPECTED = re.compile(r"^Expected `(?P<expected>[^`]+)`(?P<bound> [<>]=? \S+)?(?:, got `[^`]+`)?$")
_KEY = re.compile(r"^Object (?P<state>contains unknown|missing required) field `(?P<key>[^`]+)`$")


def decode_rows(
    lines: Iterator[tuple[int, bytes]],
    file: TraceFile,
    row_type: type[RowT],
    *,
    times: tuple[str, ...],
    optional_times: tuple[str, ...] = (),
) -> Iterator[tuple[list[int], list[RowT]]]:
    """Yield line numbers and rows, batch by batch; keys that start with ``x_`` are read past.

    ``times`` and ``optional_times`` name fields that must hold an exact number: ``int`` or ``Decimal``.

    **Raises:** `TraceError` for a line that is not JSON, is cut off, or does not have the shape of a row.
    """
    decoder = msgspec.json.Decoder(row_type, float_hook=Decimal)
    keys = [f'"{name}"'.encode() for name in row_type.__struct_fields__]
    for batch in file.batches(lines):
        rows: list[RowT] = []
        for number, line in batch:
            try:
                row = decoder.decode(line)
            except msgspec.ValidationError:
                row = _decode_extended(line, row_type, number)
            except _NOT_JSON as error:
                _refuse_json(error, number, file)
            for key in keys:
                if line.count(key) > 1:
                    _check_keys_are_distinct(line, number)
            for name in times:
                _check_time(name, number, getattr(row, name))
            for name in optional_times:
                if (value := getattr(row, name)) is not None:
                    _check_time(name, number, value)
            rows.append(row)
        yield [number for number, _ in batch], rows


def decode_object(line: bytes, row_type: type[RowT], number: int) -> RowT:
    """Decode one object, keys that start with ``x_`` read past.

    **Raises:** `TraceError` as `decode_rows`.
    """
    _check_keys_are_distinct(line, number)
    try:
        return msgspec.json.decode(line, type=row_type)
    except msgspec.ValidationError:
        return _decode_extended(line, row_type, number)


def _decode_extended(line: bytes, row_type: type[RowT], number: int) -> RowT:
    try:
        found: Any = msgspec.json.Decoder(float_hook=Decimal).decode(line)
    except _NOT_JSON as error:
        _refuse_json(error, number)
    if isinstance(found, dict):
        found = {key: value for key, value in found.items() if not key.startswith(EXTENSION)}
    try:
        return msgspec.convert(found, row_type)
    except msgspec.ValidationError as error:
        _refuse_shape(found, row_type, error, number)


def _refuse_shape(found: Any, row_type: type[RowT], error: msgspec.ValidationError, number: int) -> NoReturn:
    match = _PLACE.match(str(error))
    what, path = (match["what"], match["path"] or "$") if match else (str(error), "$")
    if key := _KEY.match(what):
        known = ", ".join(row_type.__struct_fields__)
        state = "unknown" if key["state"] == "contains unknown" else "missing"
        raise TraceError(f"{state} key {key['key']} @ line {number} {path}: the keys are {known}")
    expected = _EXPECTED.match(what)
    wanted = f"expected {expected['expected']}{expected['bound'] or ''}" if expected else what
    raise TraceError(f"{_value_text(found, path)} @ line {number} {path}: {wanted}; correct the line")


def _value_text(found: Any, path: str) -> str:
    """Return the value at a path such as ``$.hash_ids[3]`` as JSON would write it, cut to 40 characters."""
    for key, index in re.findall(r"\.(\w+)|\[(\d+)\]", path):
        found = found[key] if key else found[int(index)]
    return msgspec.json.Encoder(decimal_format="number").encode(found).decode()[:40]


def _check_keys_are_distinct(line: bytes, number: int) -> None:
    def check(pairs: list[tuple[str, object]]) -> None:
        found = Counter(key for key, _ in pairs)
        for key, count in found.items():
            if count > 1:
                raise TraceError(
                    f"key {key} stands {count} times @ line {number}: keep one; correct the line"
                )

    try:
        json.loads(line, object_pairs_hook=check)
    except (ValueError, RecursionError) as error:
        _refuse_json(error, number)


def _refuse_json(error: Exception, number: int, file: TraceFile | None = None) -> NoReturn:
    if file is not None and number == file.unended_line:
        cut_off(number)
    why = {InvalidOperation: "a number is out of range", RecursionError: "it is nested too deep"}
    said = why.get(type(error), str(error))
    raise TraceError(f"line {number} is not JSON ({said}); correct or remove the line") from None


def _check_time(name: str, number: int, value: Any) -> None:
    if not is_time(value):
        raise TraceError(
            f"{_value_text(value, '$')} @ line {number} $.{name}: expected a number; correct the line"
        )
