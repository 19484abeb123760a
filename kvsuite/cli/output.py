"""Where a verb's results go: figures to the terminal, record and page to a folder."""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import PurePath
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from kvsuite.device.select import device_name
from kvsuite.errors import RecordError
from kvsuite.golden.key import slug
from kvsuite.record.provenance import run_header, utc_now
from kvsuite.record.reader import read_record
from kvsuite.record.writer import RecordWriter
from kvsuite.report.html import render

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from rich.table import Table

    from kvsuite.record.schema import AnyLine

RECORD_NAME = "run.jsonl"
PAGE_NAME = "report.html"
READER_GONE = 141
"""Exit code when standard output was closed: what a shell shows for a program that SIGPIPE ended."""
_LABEL_WIDTH = 24
_PIPE_WIDTH = 200
_UNBOUNDED_WIDTH = 10_000


@dataclass(frozen=True, slots=True)
class RunFolder:
    """A folder for one run: its record and its page, written when the run has ended."""

    path: Path
    started_at: str
    device: str = "cpu"

    def check(self) -> None:
        """Find out before long work whether the folder can be made and written.

        **Raises:** `RecordError` when it cannot.
        """
        check_folder(self.path)

    def write(self, lines: Iterable[AnyLine], exit_status: int) -> None:
        """Write ``run.jsonl`` and ``report.html``, each whole or not at all, and print where they are.

        **Raises:** `RecordError` when the folder cannot be written.
        """
        record, page = self.path / RECORD_NAME, self.path / PAGE_NAME
        header = run_header(
            ["kvsuite", *sys.argv[1:]],
            device=self.device.partition(":")[0],
            device_name=device_name(self.device),
            started_at=self.started_at,
        )
        with RecordWriter(record) as writer:
            writer.write(header)
            for line in lines:
                writer.write(line)
            writer.end(finished_at=utc_now(), exit_status=exit_status)
        render(read_record(record), page)
        print_figures([("written", str(record)), ("written", str(page))])


def check_folder(path: Path) -> None:
    """Find out before long work whether a folder can be made and written.

    **Raises:** `RecordError` when it cannot.
    """
    there = next(place for place in (path, *path.absolute().parents) if place.exists())
    if not there.is_dir():
        raise RecordError(f"{path}: {there} is a file: choose another folder with --out")
    if not os.access(there, os.W_OK | os.X_OK):
        raise RecordError(f"{path}: {there} cannot be written (Permission denied): choose another with --out")


class _Output(Console):
    def on_broken_pipe(self) -> None:
        """End quietly when the reader has gone, and not with the code of a broken law."""
        try:
            super().on_broken_pipe()
        except SystemExit:
            raise SystemExit(READER_GONE) from None


def console() -> Console:
    """Return standard output: text as it is, wide where it is no terminal, so that nothing is cut."""
    out = _Output(highlight=False, markup=False, soft_wrap=True)
    if not out.is_terminal:
        out.width = _PIPE_WIDTH
    return out


def print_figures(figures: Iterable[tuple[str, str]]) -> None:
    """Print one line a figure."""
    out = console()
    for name, value in figures:
        out.print(f"{name:<{_LABEL_WIDTH}}{value}")


def print_line(text: str, style: str | None = None) -> None:
    """Print one line of text as it is."""
    console().print(text, style=style)


def print_table(table: Table) -> None:
    """Print a table whole: as wide as it comes where standard output is no terminal, else folded."""
    for column in table.columns:
        column.overflow = "fold"
    out = console()
    if not out.is_terminal:
        out.width = out.measure(table, options=out.options.update(width=_UNBOUNDED_WIDTH)).maximum
    out.print(table)


def short_name(text: str) -> str:
    """Return what a trace or engine is called in file names: without folders and suffixes."""
    return slug(PurePath(text).name.partition(".")[0])


def engine_slug(engine: str) -> str:
    """Return what an engine is called in file names, its version included.

    >>> engine_slug("vllm@0.23.0")
    'vllm-0_23_0'
    """
    return slug(engine.replace(".", "_"))


@contextmanager
def progress_bar(label: str) -> Iterator[Callable[[int, int], None]]:
    """Yield a function of (done, in all) that draws on standard error; silent where that is no terminal."""
    with cells_bar(label) as tell:
        yield lambda done, total: tell(done, total, ())


@contextmanager
def cells_bar(label: str) -> Iterator[Callable[[int, int, tuple[str, ...]], None]]:
    """Yield a function of (done, in all, what runs now) that draws one bar, as `progress_bar` does."""
    err = Console(stderr=True)
    if not err.is_terminal:
        yield lambda done, total, running: None
        return
    what = TextColumn("{task.description}", markup=False)
    columns = (what, BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=err, transient=True) as bar:
        task = bar.add_task(label, total=None)

        def tell(done: int, total: int, running: tuple[str, ...]) -> None:
            said = f"{label}: {', '.join(running)}" if running else label
            bar.update(task, completed=done, total=total, description=said)

        yield tell
