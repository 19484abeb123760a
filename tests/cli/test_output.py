"""What is printed is text: brackets in it are no markup."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table

from kvsuite.cli.output import print_figures, print_line, print_table

if TYPE_CHECKING:
    import pytest


def test_brackets_are_printed_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    table = Table("option", box=None)
    table.add_row("install kvsuite[fast]")
    print_table(table)
    print_line("red[red]")
    print_figures([("trace", "a[b].csv")])
    said = capsys.readouterr().out
    assert [line.rstrip() for line in said.splitlines()[1:]] == [
        " install kvsuite[fast]",
        "red[red]",
        "trace                   a[b].csv",
    ]
