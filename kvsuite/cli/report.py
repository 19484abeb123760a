"""`kvsuite report`: a page from a record."""

from pathlib import Path
from typing import Annotated

import typer


def report(
    run: Annotated[Path, typer.Argument(help="run.jsonl, or the folder that holds it.")],
    out: Annotated[
        Path | None, typer.Option(help="Page to write.  [default: report.html beside the record]")
    ] = None,
) -> None:
    """Write the page of a run record.

    Exit code 0 whatever the run found.
    """
    from kvsuite.cli.output import PAGE_NAME, RECORD_NAME, print_figures
    from kvsuite.record.reader import read_record
    from kvsuite.report.html import render

    record = run / RECORD_NAME if run.is_dir() else run
    page = record.parent / PAGE_NAME if out is None else out
    render(read_record(record), page)
    print_figures([("written", str(page))])
