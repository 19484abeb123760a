"""A decision as the page tells it: verdicts, pictures, and what it rests on."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from msgspec import structs

from kvsuite.errors import RecordError
from kvsuite.record.decision_rows import BurstRow, DecisionRow, LifecycleRow, PercentileRow, PhaseRow
from kvsuite.record.schema import DecisionLine
from kvsuite.report.decision_charts import decision_charts
from kvsuite.report.html import page_text
from kvsuite.report.view import build_view


def phase(name: str, tokens: list[int]) -> PhaseRow:
    """Ten requests: four met, three late at first, two later, one refused."""
    return PhaseRow(
        phase=name,  # type: ignore[arg-type]
        requests=10,
        met=4,
        missed_ttft=3,
        missed_itl=2,
        refused=1,
        cancelled=0,
        unanswered=0,
        completed_tokens=900,
        qualified_tokens=tokens,
        qualified_low=float(min(tokens, default=0)),
        qualified_high=float(max(tokens, default=0)),
        goodput=12.5,
        safe_concurrency=6,
        ttft=[PercentileRow(percent=50, value_us=250_000, low_us=200_000, high_us=300_000)],
        itl=[],
    )


def row(size: int, tokens: list[int], verdict: str | None, cause: str | None, **more: Any) -> DecisionRow:
    fields: dict[str, Any] = {
        "option": f"block {size}",
        "engine": "toy",
        "block_size": size,
        "control": False,
        "verdict": verdict,
        "cause": cause,
        "signal": f"what <{size}> showed",
        "slack_share": size / 1000,
        "table_share": 0.1 / size,
        "mean_occupancy": 0.5,
        "table_depth": 128 // size,
        "step_us": 1000.0 + 128 // size,
        "phases": [phase("cold", [1, 1, 1]), phase("steady", tokens)],
    }
    return DecisionRow(**(fields | more))


def decision(**more: Any) -> DecisionLine:
    fields: dict[str, Any] = {
        "trace": "churn",
        "engine": "toy",
        "layout": "tiny L2",
        "pool_bytes": 336,
        "factor": "block size",
        "recipe": {"pool_bytes": 336, "sharing": True},
        "recipe_hash": "abcdef01" * 8,
        "slo_ttft_us": 500_000,
        "slo_itl_us": 50_000,
        "device": "a card",
        "kernel": "a kernel",
        "projected": False,
        "repeats": 3,
        "result": "ship",
        "shipped": "block 8",
        "favoured": None,
        "tied": ["block 8", "block 16"],
        "sentence": "Ship block 8: <it> serves.",
        "cold_until_us": 2e6,
        "load_sequences": 4,
        "load_context_tokens": 128,
        "step_slope_us": 1.0,
        "step_rho": 0.75,
        "rows": [
            row(16, [90, 100, 95], "reject", "slack"),
            row(8, [100, 110, 90], "ship", "slack"),
            row(1, [10, 10, 10], "inspect", "latency"),
            row(64, [], "reject", "refusal", refused="no <such> blocks", phases=[]),
            row(1, [], None, None, option="hold all", control=True, unjudged="no clock", phases=[]),
        ],
    }
    return DecisionLine(**(fields | more))


def test_a_decision_is_drawn_over_block_sizes(build: Any) -> None:
    (view,) = build_view(build.record(build.trace(), decision())).decisions
    assert [r.option for r in view.ran] == ["block 1", "block 8", "block 16"]
    knee, memory, depth, occupancy = decision_charts(view)

    line, ship, inspect, reject = knee.figure["data"]
    np.testing.assert_array_equal(line["y"], [10, 100, 95])
    for drawn, size, tokens, above in ((ship, 8, 100, 10), (inspect, 1, 10, 0), (reject, 16, 95, 5)):
        np.testing.assert_array_equal((drawn["x"], drawn["y"]), [[size], [tokens]])
        np.testing.assert_array_equal(drawn["error_y"]["array"], [above])
    assert reject["marker"]["symbol"] == "x"
    assert [item.traces for item in knee.legend] == [(1,), (2,), (3,)]
    assert knee.table.rows[1] == ("block 8", "100", "90 to 110", "ship")

    np.testing.assert_allclose(memory.figure["data"][0]["y"], [0.001, 0.008, 0.016])
    np.testing.assert_allclose(memory.figure["data"][1]["y"], [0.1, 0.0125, 0.00625])
    assert "+1 us for each entry that tables are deeper, Spearman's rho 0.75" in depth.text
    assert depth.table.rows[0] == ("block 1", "128", "1.128 ms")
    assert [drawn["text"] for drawn in occupancy.figure["data"]] == [["8"], ["1"], ["16"]]


def tried() -> list[DecisionRow]:
    """Rows with headroom; block 8 was tried, and broke a law before it."""
    burst = BurstRow(largest=7, bound="seats", spare_blocks=9, running=4, copied_tokens=21)
    life = LifecycleRow(
        requests=1208, forked=184, denied=2, left_at_once=14, preempted=1, tokens_read=5000, broken=None
    )
    broken = structs.replace(life, broken="drain in pool <p>: 1 block")
    return [
        row(16, [90, 100, 95], "reject", "refusal", spare_blocks=4, lifecycle=broken),
        row(8, [100, 110, 90], "ship", "slack", spare_blocks=9, burst=burst, lifecycle=life),
        row(1, [10, 10, 10], "inspect", "latency", spare_blocks=80),
    ]


def test_headroom_is_drawn_and_trials_are_told(build: Any, parse: Any) -> None:
    record = build.record(build.trace(), decision(rows=tried(), declared_burst=5))
    (view,) = build_view(record).decisions
    headroom = decision_charts(view)[-1]
    ship, inspect, reject = headroom.figure["data"]
    for drawn, size, blocks in ((ship, 8, 9), (inspect, 1, 80), (reject, 16, 4)):
        np.testing.assert_array_equal((drawn["x"], drawn["y"]), [[size], [blocks]])
    assert headroom.table.rows[1] == ("block 8", "9", "7", "seats")
    text = parse(page_text(build_view(record))).text("decisions")
    assert "it did not survive: drain in pool <p>: 1 block." in text
    assert "the pool drained, and 5,000 tokens read back were right." in text
    assert (
        "it bore a divergence burst of 7 samples (9 spare blocks, 4 sequences running, bound by seats" in text
    )
    assert "21 tokens copied); 5 are declared." in text


@pytest.mark.parametrize(
    "more", [{"factor": "pool"}, {"rows": decision().rows[3:]}], ids=["another factor", "nothing ran"]
)
def test_what_has_no_block_sizes_has_no_pictures(build: Any, more: dict[str, Any]) -> None:
    (view,) = build_view(build.record(build.trace(), decision(**more))).decisions
    assert decision_charts(view) == ()


def test_the_page_tells_verdicts_and_recipe(build: Any, parse: Any) -> None:
    page = parse(page_text(build_view(build.record(build.trace(), decision(compared="same")))))
    text = page.text("decisions")
    for said in (
        "Ship block 8: <it> serves.",
        "Against the stored decision: same.",
        "what <16> showed",
        "250 ms (200 to 300)",
        "Recipe abcdef01",
        "TTFT within 500 ms and ITL p99 within 50 ms",
        "hold all (control)",
    ):
        assert said in text, said
    assert len(page.ids) == len(set(page.ids))


def test_a_decision_that_gates_is_the_headline(build: Any) -> None:
    unreachable = decision(result="SLO unreachable on this device", shipped=None)
    view = build_view(build.record(build.trace(), unreachable, exit_status=4))
    assert view.verdict.headline == "The SLO is unreachable on this device"
    stale = decision(compared="recipe is stale: sharing changed from true to false")
    assert build_view(build.record(build.trace(), stale)).verdict.status == "bad"
    assert build_view(build.record(build.trace(), decision(compared="same"))).verdict.status == "good"
    projected = decision(projected=True, compared="shipped size changed: from a to b")
    assert build_view(build.record(build.trace(), projected)).verdict.status == "good"


def test_a_decision_is_refused_without_what_it_rests_on(build: Any) -> None:
    lacking: list[dict[str, Any]] = [{"trace": "unknown"}, {"layout": ""}, {"recipe": {}}]
    for more in lacking:
        with pytest.raises(RecordError, match=r"figure 'decision over .*' has no"):
            build_view(build.record(build.trace(), decision(**more)))
