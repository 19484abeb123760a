"""Writes a run record line by line; ``run.jsonl`` appears whole or not at all."""

from __future__ import annotations

import os
from collections import Counter
from typing import TYPE_CHECKING, Any, BinaryIO, Self

import msgspec

from kvsuite.errors import RecordError
from kvsuite.record.schema import AnyLine, CaseLine, End, GoldenLine, Header

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

PARTIAL_SUFFIX = ".partial"


def partial_path(path: Path) -> Path:
    """Return where the lines of an unfinished record lie: ``run.jsonl.partial`` for ``run.jsonl``."""
    return path.with_name(path.name + PARTIAL_SUFFIX)


class RecordWriter:
    """A context manager that takes the lines of one run, the `Header` first and `end` last.

    Lines go to ``<name>.partial`` beside the target and are flushed one by one. Leaving the block after
    `end` moves the file into place; leaving it otherwise (an exception, a killed process) keeps the
    partial file and leaves an older record of that name untouched.

    **Raises:** `RecordError` for a line out of order, a block left without `end`, or a file that cannot
    be written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._partial = partial_path(path)
        self._file: BinaryIO | None = None
        self._encoder = msgspec.json.Encoder()
        self._outcomes: Counter[str] = Counter()
        self._verdicts: Counter[str] = Counter()
        self._started = False
        self._ended = False

    def __enter__(self) -> Self:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._partial.unlink(missing_ok=True)
            self._file = self._partial.open("xb")
        except OSError as error:
            raise self._unwritable(error) from error
        return self

    def write(self, line: AnyLine) -> None:
        """Append one line and flush it."""
        if isinstance(line, Header) == self._started:
            found = "a second header" if self._started else f"{type(line).__name__} before the header"
            raise RecordError(f"{self.path}: {found}: write one Header first, then the other lines")
        if self._ended:
            raise RecordError(f"{self.path}: {type(line).__name__} after the end line: write it before end()")
        self._append(line)
        self._started = True
        self._ended = isinstance(line, End)
        if isinstance(line, CaseLine):
            self._outcomes[line.outcome] += 1
        if isinstance(line, GoldenLine):
            self._verdicts[line.verdict] += 1

    def end(self, *, finished_at: str, exit_status: int) -> None:
        """Write the last line, with the cases and goldens counted from the lines written so far."""
        self.write(
            End(
                finished_at=finished_at,
                exit_status=exit_status,
                counts=dict(sorted(self._outcomes.items())),
                verdicts=dict(sorted(self._verdicts.items())),
            )
        )

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        file, self._file = self._file, None
        if file is None:
            return
        with file:
            if kind is not None:
                return
            if not self._ended:
                raise RecordError(
                    f"{self.path}: no end line was written; what there is stays in {self._partial}"
                )
            self._settle(file)
        try:
            self._partial.replace(self.path)
        except OSError as failure:
            raise self._unwritable(failure) from failure

    def _append(self, line: AnyLine) -> None:
        if self._file is None:
            raise RecordError(f"{self.path}: the record is not open: write inside the with block")
        try:
            self._file.write(self._encoded(line) + b"\n")
            self._file.flush()
        except OSError as error:
            raise self._unwritable(error) from error

    def _encoded(self, line: AnyLine) -> bytes:
        try:
            return self._encoder.encode(line)
        except UnicodeEncodeError:
            return self._encoder.encode(_text_alone(msgspec.to_builtins(line)))

    def _settle(self, file: BinaryIO) -> None:
        """Put the bytes on disk and make sure that the partial file is still this writer's own."""
        os.fsync(file.fileno())
        try:
            own = os.path.samestat(os.fstat(file.fileno()), self._partial.stat())
        except FileNotFoundError:
            own = False
        if not own:
            raise RecordError(
                f"{self._partial} is no longer this run's own: another run took or moved it; "
                f"give each run a record path of its own"
            )

    def _unwritable(self, error: OSError) -> RecordError:
        return RecordError(
            f"{self.path}: cannot write the run record ({error.strerror}): nothing was put in its place; "
            f"free space or choose another path"
        )


def _text_alone(value: Any) -> Any:
    """Return the value with bytes of file names that are no text written as escapes."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {_text_alone(key): _text_alone(item) for key, item in value.items()}
    return [_text_alone(item) for item in value] if isinstance(value, list) else value
