"""The comparison of contiguous and paged allocation that handbooks print, measured on the engines.

Reservation was never built for dynamic lengths: the figures show that mismatch, not a defect of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kvsuite.cache.layout import model_layout
from kvsuite.engine.contract import Capability
from kvsuite.replay.scheduler import SchedulerConfig
from kvsuite.sweep.compare import Comparison, run_strategy
from kvsuite.trace.load import load_trace

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.requires(Capability.PAGED)


def test_fifty_requests(engine_name: str, summary_line: Callable[[str], None]) -> None:
    """50 requests of up to 2,048 tokens: 102,400 slots reserved against 14,976 in blocks of 16."""
    comparison = Comparison(
        trace=load_trace("handbook"),
        churn=load_trace("churn"),
        layout=model_layout("tiny"),
        scheduler=SchedulerConfig(max_sequences=256, max_step_tokens=16_384, step_us=50_000),
        paged_engine=engine_name,
    )
    lengths = comparison.lengths
    assert (int(lengths.min()), int(lengths.max()), round(float(lengths.mean()))) == (50, 1051, 292)
    rows = {
        name: run_strategy(comparison, name).row
        for name in ("contiguous-max", "contiguous-exact", engine_name)
    }
    reserved, paged = rows["contiguous-max"], rows[engine_name]
    assert (reserved.reserved_tokens, reserved.payload_tokens) == (102_400, 14_582)
    assert (paged.reserved_tokens, paged.payload_tokens) == (14_976, 14_582)
    assert rows["contiguous-exact"].reserved_tokens == 14_582
    assert rows["contiguous-exact"].fragmentation_events > 0
    assert paged.fragmentation_events == 0
    share = {name: f"{row.payload_tokens / row.reserved_tokens:.1%}" for name, row in rows.items()}
    assert share == {"contiguous-max": "14.2%", "contiguous-exact": "100.0%", engine_name: "97.4%"}
    saved = 1 - paged.reserved_tokens / reserved.reserved_tokens
    assert (f"{saved:.1%}", f"{1 / (1 - saved):.1f}") == ("85.4%", "6.8")
    summary_line(f"{engine_name}: 97.4 % of its slots hold data where reservation holds 14.2 %")
