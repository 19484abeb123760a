from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from kvsuite.errors import RecordError
from kvsuite.sweep.cells import run_cell
from kvsuite.sweep.store import CellStore
from tests.sweep.conftest import cells_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from kvsuite.sweep.traces import TraceRef


def test_a_result_comes_back_as_it_was(boundary: TraceRef, tmp_path: Path) -> None:
    store = CellStore(tmp_path / "cells")
    for cell in cells_of(boundary):
        result = run_cell(cell)
        assert store.read(cell) is None
        store.write(cell, result)
        kept = store.read(cell)
        assert kept == result
        assert (kept.wall_s, kept.cpu_s) == (result.wall_s, result.cpu_s)
    assert sorted(path.suffix for path in store.folder.iterdir()) == [".json"] * 5


def test_a_refusal_is_not_kept(boundary: TraceRef, tmp_path: Path) -> None:
    store = CellStore(tmp_path / "cells")
    (cell, _) = cells_of(boundary, sizes=(4096,))
    result = run_cell(cell)
    assert result.row.refused is not None
    assert "the pool holds 0 blocks of 4096 tokens" in result.row.refused
    store.write(cell, result)
    assert not store.folder.exists()


def cut(data: bytes) -> bytes:
    return data[: len(data) // 2]


def another_key(data: bytes) -> bytes:
    kept = json.loads(data)
    return json.dumps(kept | {"key": "0" * 64}).encode()


def another_number(data: bytes) -> bytes:
    return data.replace(b'"preempted":0', b'"preempted":7', 1)


def another_kind(data: bytes) -> bytes:
    return b"[]"


@pytest.mark.parametrize("damage", [cut, another_key, another_number, another_kind])
def test_a_file_that_is_not_what_was_written_is_damaged(
    damage: Callable[[bytes], bytes], boundary: TraceRef, tmp_path: Path
) -> None:
    store = CellStore(tmp_path / "cells")
    (cell, _) = cells_of(boundary, sizes=(16,))
    store.write(cell, run_cell(cell))
    path = store.path(cell)
    data = path.read_bytes()
    assert damage(data) != data
    path.write_bytes(damage(data))
    with pytest.raises(RecordError, match="damaged") as refused:
        store.read(cell)
    assert str(path) in str(refused.value)


def test_the_newest_version_is_never_taken_from_the_store(boundary: TraceRef, tmp_path: Path) -> None:
    store = CellStore(tmp_path / "cells")
    (cell, _) = cells_of(boundary, sizes=(16,))
    result = run_cell(cell)
    newest = replace(cell, engine="vllm@newest")
    store.write(newest, result)
    assert store.read(newest) is None


def test_a_store_that_cannot_be_written_says_so(boundary: TraceRef, tmp_path: Path) -> None:
    (tmp_path / "cells").write_text("mine")
    store = CellStore(tmp_path / "cells")
    (cell, _) = cells_of(boundary, sizes=(16,))
    with pytest.raises(RecordError, match="cells"):
        store.write(cell, run_cell(cell))


def test_a_fresh_start_forgets_results_and_nothing_else(boundary: TraceRef, tmp_path: Path) -> None:
    store = CellStore(tmp_path / "cells")
    store.clear()
    (cell, _) = cells_of(boundary, sizes=(16,))
    store.write(cell, run_cell(cell))
    (store.folder / "notes.txt").write_text("mine")
    store.clear()
    assert [path.name for path in store.folder.iterdir()] == ["notes.txt"]
