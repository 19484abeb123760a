"""Calibrations in files: whole or not at all, and of no use to another device, kernel or layout."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import asdict
from typing import TYPE_CHECKING

import msgspec

from kvsuite.errors import ConfigError, RecordError, TraceError
from kvsuite.sweep.calibrate import SCHEMA, Calibration, Subject
from kvsuite.trace.atomic import write_whole

if TYPE_CHECKING:
    from pathlib import Path

    from kvsuite.cache.layout import Layout

_BEGINNING = re.compile(rb'\s*\{\s*"sha256"')
"""By this a calibration is known, also where the rest of it is missing."""
_COMPARED = ("device", "device_name", "kernel", "kernel_hash", "layout_hash")


class _Kept(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of a file."""

    sha256: str
    """Of ``calibration`` as it is written here."""
    calibration: msgspec.Raw


class _Header(msgspec.Struct):
    schema: int


def layout_hash(layout: Layout) -> str:
    """Return sixteen hex digits that change with anything that shapes the cache."""
    text = json.dumps(asdict(layout), sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def write_calibration(path: Path, calibration: Calibration) -> None:
    """Write a calibration as JSON.

    **Raises:** `RecordError` when the folder cannot be written; an older file is untouched.
    """
    text = msgspec.Raw(msgspec.json.encode(calibration))
    kept = _Kept(sha256=hashlib.sha256(bytes(text)).hexdigest(), calibration=text)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, msgspec.json.encode(kept) + b"\n")
    except (OSError, TraceError) as error:
        raise RecordError(f"{path}: {error}") from error


def subject_in(path: Path) -> Subject | None:
    """Return what the calibration in ``path`` is of; None where the file is there and is no calibration.

    **Raises:** `RecordError` for a calibration that is damaged or of another schema.
    """
    try:
        is_calibration = _BEGINNING.match(path.read_bytes()) is not None
    except OSError:
        return None
    return _decoded(path).subject if is_calibration else None


def read_calibration(path: Path, wanted: Subject, *, projected: bool = False) -> Calibration:
    """Return the calibration in ``path``, which has to be of ``wanted``.

    With ``projected`` another device will do, and its kernel with it: the calibration then says so.

    **Raises:** `RecordError` for a file that is missing, damaged or of another schema; `ConfigError` for one
    of another device, kernel or layout, naming what differs.
    """
    calibration = _decoded(path)
    had = calibration.subject
    differs = [name for name in _COMPARED if getattr(had, name) != getattr(wanted, name)]
    elsewhere = "device" in differs or "device_name" in differs
    if projected and elsewhere and "layout_hash" not in differs:
        return msgspec.structs.replace(calibration, projected=True)
    if differs:
        told = "; ".join(_difference(name, had, wanted) for name in differs)
        hint = ", or ask for a projection from that device" if elsewhere else ""
        raise ConfigError(
            f"{path} is a calibration of something else: {told}: run kvsuite calibrate here{hint}"
        )
    return calibration


def _difference(name: str, had: Subject, wanted: Subject) -> str:
    found, due = getattr(had, name), getattr(wanted, name)
    if name == "layout_hash":
        return f"layout {had.layout} ({found}), wanted {wanted.layout} ({due})"
    if name == "kernel_hash":
        return f"source of the kernel {found}, wanted {due}"
    return f"{name.replace('_', ' ')} {found}, wanted {due}"


def _decoded(path: Path) -> Calibration:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise RecordError(f"{path}: {error.strerror or error}") from error
    try:
        kept = msgspec.json.decode(data, type=_Kept)
        text = bytes(kept.calibration)
        if hashlib.sha256(text).hexdigest() != kept.sha256:
            raise RecordError(f"{path}: damaged, its content is not what was written there")
        schema = msgspec.json.decode(text, type=_Header).schema
        if schema != SCHEMA:
            raise RecordError(
                f"{path}: a calibration of schema {schema}, this kvsuite reads {SCHEMA}: calibrate again"
            )
        return msgspec.json.decode(text, type=Calibration)
    except msgspec.MsgspecError as error:
        raise RecordError(f"{path}: damaged, {error}: calibrate again") from error
