from __future__ import annotations

import hashlib
import pickle
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from kvsuite.engine.registry import open_engine
from kvsuite.errors import ConfigError, TraceError
from kvsuite.ledger.row import COLUMN_NAMES
from kvsuite.record import build
from kvsuite.record.schema import CaseLine, ContentLine, LedgerLine
from kvsuite.replay.driver import replay
from kvsuite.sweep import cells as cells_module
from kvsuite.sweep import identity, traces
from kvsuite.sweep.cells import run_cell
from kvsuite.sweep.traces import TraceRef
from kvsuite.trace.identity import content_hash
from kvsuite.trace.options import TraceOptions
from kvsuite.trace.synthetic import synthetic
from tests.sweep.conftest import Probes, cells_of

if TYPE_CHECKING:
    from pathlib import Path

    from kvsuite.sweep.cells import Cell
    from kvsuite.sweep.results import CellResult
    from kvsuite.trace.model import Trace

HEADER = "arrived_at,num_prefill_tokens,num_decode_tokens\n"


def one_line(result: CellResult, kind: type) -> object:
    (line,) = [line for line in result.lines if isinstance(line, kind)]
    return line


def on(cell: Cell, core: str) -> CellResult:
    return run_cell(replace(cell, core=core))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["boundary", "thrash", "churn"])
def test_both_cores_give_the_same_row_digest_and_ledger(name: str) -> None:
    pytest.importorskip("numba")
    trace = TraceRef.read(name, TraceOptions(limit=40))
    for cell in cells_of(trace, sizes=(8, 16), controls=("contiguous-one-block",)):
        stepped, compiled = on(cell, "step"), on(cell, "compiled")
        assert stepped.row.steps
        assert (compiled.row, compiled.digest) == (stepped.row, stepped.digest)
        assert one_line(compiled, LedgerLine) == one_line(stepped, LedgerLine)
        content = one_line(compiled, ContentLine)
        assert isinstance(content, ContentLine)
        assert (content.mode, content.tokens_written) == ("none", 0)
        case = one_line(compiled, CaseLine)
        assert isinstance(case, CaseLine)
        assert case.not_judged == ["content (nothing was written)"]


def test_a_ledger_in_few_buckets_gives_the_same_figures(
    boundary: TraceRef, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("numba")
    (cell, _) = cells_of(boundary, sizes=(16,))
    whole = on(cell, "compiled")
    monkeypatch.setattr(cells_module, "LEDGER_BUCKETS", 4)
    monkeypatch.setattr(build, "MAX_FINAL_LENGTHS", 3)
    few = on(cell, "compiled")
    assert (few.row, few.digest) == (whole.row, whole.digest)
    kept, thin = one_line(whole, LedgerLine), one_line(few, LedgerLine)
    assert isinstance(kept, LedgerLine)
    assert isinstance(thin, LedgerLine)
    assert len(kept.rows) == kept.steps_total > 4 >= len(thin.rows)
    assert thin.steps_per_row * 4 >= thin.steps_total
    for exact in ("totals", "peaks", "means", "steps_total", "last_step", "closing_gap_bytes"):
        assert getattr(thin, exact) == getattr(kept, exact)
    written = kept.columns.index("written")
    assert sum(row[written] or 0 for row in thin.rows) == kept.totals["written"]
    assert thin.rows[-1][kept.columns.index("payload")] == kept.rows[-1][kept.columns.index("payload")]
    assert len(kept.final_lengths) == 20
    assert thin.final_lengths == []


def test_the_digest_is_that_of_every_step_and_row(boundary: TraceRef) -> None:
    (cell, _) = cells_of(boundary, sizes=(16,))
    done = replay(
        boundary.open(),
        open_engine("reference", cell.config(boundary.open())),
        scheduler=cell.scheduler,
    )
    table = np.column_stack([done.timeline.steps, done.timeline.pools[0].rows]).astype("<i8")
    assert table.shape[1] == 1 + len(COLUMN_NAMES)
    assert run_cell(cell).digest == hashlib.blake2b(table.tobytes(), digest_size=16).hexdigest()


def test_the_compiled_core_is_the_references_own_and_can_be_demanded(
    boundary: TraceRef, monkeypatch: pytest.MonkeyPatch
) -> None:
    cell, control = cells_of(boundary, sizes=(16,))
    monkeypatch.setattr(cells_module, "has_numba", lambda: True)
    found = [one.is_compiled for one in (cell, replace(cell, core="step"), control)]
    assert found == [True, False, False]
    monkeypatch.setattr(cells_module, "has_numba", lambda: False)
    found = [one.is_compiled for one in (cell, replace(cell, core="compiled"))]
    assert found == [False, True]
    with pytest.raises(ConfigError, match="the compiled core needs numba"):
        run_cell(replace(cell, core="compiled"))


def test_a_key_stands_for_what_the_result_depends_on(
    boundary: TraceRef, monkeypatch: pytest.MonkeyPatch
) -> None:
    cell, _ = cells_of(boundary, sizes=(16,))
    other_name = replace(boundary, name="other", place="/elsewhere")
    assert replace(cell, name="called otherwise", trace=other_name).key == cell.key
    changes: list[dict[str, object]] = [
        {"engine": "reference-eager"},
        {"block_size": 8},
        {"pool_bytes": 2**19},
        {"layout": replace(cell.layout, num_layers=3)},
        {"scheduler": replace(cell.scheduler, max_sequences=9)},
        {"prefix_cache": False},
        {"watermark_blocks": 1},
        {"max_model_tokens": 99},
        {"options": (("null_blocks", 1),)},
        {"core": "step"},
        {"trace": replace(boundary, content_hash="kvt1-0")},
    ]
    keys = [replace(cell, **change).key for change in changes]  # type: ignore[arg-type]
    assert len({cell.key, *keys}) == 1 + len(changes)
    before = cell.key
    monkeypatch.setattr(cells_module, "SEMANTICS_VERSION", 99)
    assert replace(cell).key != before
    monkeypatch.undo()
    monkeypatch.setattr(cells_module, "SCHEMA_VERSION", 99)
    assert replace(cell).key != before
    monkeypatch.undo()
    assert replace(cell).key == before


def test_an_engine_is_known_by_its_version_and_its_text(
    probes: Probes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(identity, "engine_identity", identity.engine_identity.__wrapped__)
    known = identity.engine_identity("probe-steady")
    assert known.startswith("probes 1.0 ")
    module = tmp_path / "site" / "probe_engines.py"
    module.write_text(module.read_text(encoding="utf-8") + "# changed\n", encoding="utf-8")
    assert identity.engine_identity("probe-steady") != known
    assert identity.engine_identity("vllm@0.33.0") == "vllm@0.33.0"
    assert identity.engine_identity("reference") == "built-in"
    assert identity.is_moving("vllm@newest")
    assert not identity.is_moving("vllm@0.33.0")


def test_a_trace_is_opened_once_and_left_behind_on_the_way_to_another_process(
    boundary: TraceRef, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = pickle.loads(pickle.dumps(boundary))
    assert there == boundary
    assert there.opened is None
    opened: list[tuple[str, TraceOptions]] = []

    def open_trace(text: str, options: TraceOptions) -> Trace:
        opened.append((text, options))
        assert boundary.opened is not None
        return boundary.opened

    monkeypatch.setattr(traces, "_OPENED", traces._Opened())
    monkeypatch.setattr(traces, "open_trace", open_trace)
    assert there.open() is there.open()
    assert opened == [("boundary", TraceOptions(limit=20))]


def test_a_trace_in_memory_alone_travels_whole() -> None:
    trace = synthetic("boundary").head(5)
    there = pickle.loads(pickle.dumps(TraceRef.of(trace)))
    assert content_hash(there.open()) == content_hash(trace)


def test_a_trace_that_is_another_one_there_is_refused_with_both_hashes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(HEADER + "0,5,1\n", encoding="utf-8")
    named = TraceRef.read(str(path), TraceOptions())
    path.write_text(HEADER + "0,6,1\n", encoding="utf-8")
    changed = TraceRef.read(str(path), TraceOptions())
    monkeypatch.setattr(traces, "_OPENED", traces._Opened())
    with pytest.raises(TraceError, match="the file is another one here, or has changed") as refused:
        pickle.loads(pickle.dumps(named)).open()
    assert named.content_hash in str(refused.value)
    assert changed.content_hash in str(refused.value)


def test_no_more_than_two_traces_stay_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traces, "_OPENED", traces._Opened())
    refs = [TraceRef.of(synthetic("boundary").head(count)) for count in (3, 4, 5)]
    for ref in refs:
        ref.open()
    assert list(traces._OPENED._traces) == [refs[1].content_hash, refs[2].content_hash]
