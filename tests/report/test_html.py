from __future__ import annotations

import json
import os
import re
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from plotly.offline import get_plotlyjs  # type: ignore[import-untyped]

from kvsuite.errors import RecordError
from kvsuite.record.schema import NoteLine
from kvsuite.report.html import page_text, render
from kvsuite.report.view import MAX_DRAWN, build_view

if TYPE_CHECKING:
    from pathlib import Path

EVIL = "t.py::t[<script>alert(1)</script>&\"']"
SECTIONS = {
    "verdicts",
    "what-ran",
    "cases",
    "ledgers",
    "comparisons",
    "sweeps",
    "memory",
    "content",
    "skips",
    "deviations",
    "notes",
}


def full_record(build: Any) -> Any:
    """One of everything, with names and messages that would break a page that does not escape."""
    return build.record(
        *build.replay(),
        build.case(EVIL, "failed", message="</pre><b>bold</b>", invariants=["closure"]),
        build.golden(
            EVIL,
            "drift",
            first_divergence="step 4, allocated: expected 4, found 5",
            diff=[" [3, 1]", "-[4, 4]", "+[4, 5]"],
            lines_differ=2,
            changed_preimage=["version: 1.1 -> 1.2"],
            accept="pytest --update-goldens -k 'a & b'",
        ),
        build.case("c", not_judged=["device"]),
        build.case("skip", "skipped", capability="FORK"),
        build.case("late", "xfailed", deviation="upstream: <later>"),
        build.memory("suite", mapped_bytes=8192, committed_bytes=4096),
        build.comparison(),
        build.sweep(),
        NoteLine(text="a <fill>", level="warning"),
    )


@pytest.fixture
def page(build: Any, parse: Any) -> Any:
    return parse(page_text(build_view(full_record(build))))


def test_every_section_is_there_and_reachable_from_the_contents(page: Any) -> None:
    assert set(page.ids) >= SECTIONS
    linked = {values["href"] for tag, values in page.tags if tag == "a" and "href" in values}
    assert linked >= {f"#{name}" for name in SECTIONS}


def test_sections_stand_even_where_there_is_nothing_to_say(build: Any, parse: Any) -> None:
    page = parse(page_text(build_view(build.record())))
    assert set(page.ids) >= SECTIONS - {"comparisons", "sweeps"}
    assert "No ledger in this record" in page.text("ledgers")
    assert "not observed" in page.text("memory")
    assert "plotly.js v" not in page.source


def test_ids_are_unique_and_every_anchor_resolves(page: Any) -> None:
    assert len(page.ids) == len(set(page.ids))
    for _, values in page.tags:
        if values.get("href", "").startswith("#"):
            assert values["href"][1:] in page.ids
        for name in values.get("aria-labelledby", "").split():
            assert name in page.ids


def test_nothing_is_loaded_from_anywhere(page: Any) -> None:
    for tag, values in page.tags:
        assert tag not in {"link", "iframe", "img", "object", "embed", "base", "form"}
        assert not {"src", "srcset", "action", "poster", "background"} & set(values), (tag, values)
        href = values.get("href", "#")
        assert href.startswith("#"), href
    styles = "".join(re.findall(r"<style>(.*?)</style>", page.source, re.DOTALL))
    assert "url(" not in styles
    assert "@import" not in styles


def test_the_policy_forbids_the_network(page: Any) -> None:
    (policy,) = [v["content"] for tag, v in page.tags if v.get("http-equiv") == "Content-Security-Policy"]
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules == {
        "default-src": "'none'",
        "script-src": "'unsafe-inline'",
        "style-src": "'unsafe-inline'",
        "img-src": "data:",
        "base-uri": "'none'",
        "form-action": "'none'",
    }


def test_plotly_is_inlined_once(page: Any) -> None:
    assert page.source.count("plotly.js v") == 1
    assert "cdn.plot.ly/plotly" not in page.source


def test_values_are_escaped(page: Any) -> None:
    for broken in ("<script>alert", "</pre><b>", "<later>", "<fill>", "<toy>", "<pool>"):
        assert broken not in page.source
    assert not any("alert(1)" in script for script in page.scripts)
    anchor = next(name for name in page.ids if name.startswith("case-t.py-t-script"))
    assert EVIL in page.text(anchor)
    assert "</pre><b>bold</b>" in page.text(anchor)


def test_the_chart_data_survives_hostile_names(build: Any, parse: Any) -> None:
    hostile = "</script><b>"
    rows = list(build.comparison().rows)
    line = build.comparison(rows=[rows[0], type(rows[1])(**{**_fields(rows[1]), "strategy": hostile})])
    page = parse(page_text(build_view(build.record(build.trace(), line))))

    (data,) = [json.loads(script) for script in page.scripts if script.startswith('{"arrays"')]
    bars = data["figures"]["comparison-compare-utilisation"]["figure"]["data"][0]
    assert bars["y"] == ["reserve all", hostile]


def test_a_failing_case_shows_what_to_do(page: Any) -> None:
    anchor = next(name for name in page.ids if name.startswith("case-t.py"))
    text = page.text(anchor)
    for part in (
        "failed",
        "Violated: closure",
        "drift",
        "First divergence. step 4, allocated: expected 4, found 5",
        "version: 1.1 -> 1.2",
        "-[4, 4]",
        "+[4, 5]",
        "2 lines differ in all",
        "pytest --update-goldens -k 'a & b'",
    ):
        assert part in text
    copies = [values["data-copy"] for tag, values in page.tags if tag == "button" and "data-copy" in values]
    assert copies == ["pytest --update-goldens -k 'a & b'"]


def test_the_worst_case_stands_first(page: Any) -> None:
    cases = [name for name in page.ids if name.startswith("case-")]
    assert cases[0].startswith("case-t.py")
    assert cases[1:] == ["case-late", "case-c", "case-skip"]


def test_what_ran_is_said(page: Any) -> None:
    text = page.text("what-ran")
    for part in (
        "toy 1.2 adapter 3",
        "feedbeef",
        "block_size 4",
        "kvt1-0123456789abcdef",
    ):
        assert part in text
    assert "5 = 3 kept + 2 dropped (zero output)" in text
    assert "max_sequences 4" in text
    assert "1 golden compared" in text
    assert "pytest --engine <toy>" in text


def test_rows_that_an_overlay_added_were_not_read(build: Any, parse: Any) -> None:
    """5 rows read are 3 kept and 2 dropped; with 2 added 5 requests were asked for."""
    asked = msgspec.structs.replace(build.trace(), requests=5)
    page = parse(page_text(build_view(build.record(asked))))
    assert "5 = 3 kept + 2 dropped (zero output), 2 added" in page.text("what-ran")


def test_a_recipe_that_one_ledger_alone_has_is_no_error(build: Any, parse: Any) -> None:
    ledgers = (build.ledger(), build.ledger(case="d", recipe={"max_sequences": 4}))
    lines = [build.engine(), build.trace(), *ledgers, build.content(), build.content("d")]
    page = parse(page_text(build_view(build.record(*lines))))
    assert "step_us differs by case" in page.text("what-ran")


def test_the_closing_table_adds_up_to_the_pool(page: Any) -> None:
    """Row 1 of the hand-made ledger: 90 + 30 + 40 + 160 bytes and 16 of padding."""
    text = page.text("ledger-c-toy-churn-device-g0-r0")
    table = text[text.index("Where the bytes are") :]
    assert "Payload 90 B 26.8 %" in table
    assert "Tail slack 30 B 8.9 %" in table
    assert "Never allocatable 40 B" in table
    assert "Padding 16 B" in table
    assert "Free 160 B" in table
    assert "Sum of categories 336 B" in table
    assert "Pool 336 B" in table
    assert "Gap 0 B" in table


def test_what_was_not_observed_is_said_and_never_zero(build: Any, parse: Any) -> None:
    rows = {"payload": [3, 9], "slack": [1, 3], "cached": [None, None], "free": [24, 16]}
    lines = [build.engine(), build.trace(), build.ledger(rows, closing_gap_bytes=None)]
    lines += [build.content(mode="none", tokens_written=0, tokens_read=0)]
    page = parse(page_text(build_view(build.record(*lines))))

    table = page.text("ledger-c-toy-churn-device-g0-r0")
    assert re.search(r"Cached not observed not observed not observed not observed not observed", table)
    assert "Sum of categories not observed" in table
    assert "Gap not observed" in table
    assert "not judged" in page.text("ledgers")
    assert "content unchecked: no slots to be seen not observed not observed not observed" in page.text(
        "content"
    )


def test_bytes_are_called_reconciled_only_when_an_engines_own_close(
    build: Any, parse: Any, page: Any
) -> None:
    assert "bytes reconciled" not in page.source.lower()
    assert "say nothing of an engine's bytes" in page.text("memory")
    own = parse(page_text(build_view(build.record(build.memory("engine")))))
    assert "Bytes reconciled" in own.text("memory")
    broken = parse(page_text(build_view(build.record(build.memory("engine", reserve_bytes=49)))))
    assert "bytes reconciled" not in broken.source.lower()
    assert "1 open" in broken.text("memory")


def test_memory_readings_show_mapped_committed_reserve_and_the_bound(page: Any) -> None:
    text = page.text("memory")
    assert "8.00 KiB 4.00 KiB not observed 400 B 300 B 36 B 0 B 14 B 50 B 0 B bound 0 B not observed" in text


def test_skips_deviations_and_notes_are_listed(page: Any) -> None:
    assert "FORK 1 case" in page.text("skips")
    assert "device in 1 case" in page.text("skips")
    assert "upstream: <later>" in page.text("deviations")
    assert "warning a <fill>" in page.text("notes")


def test_studies_show_their_figures_and_their_caveat(page: Any) -> None:
    compared = page.text("comparisons")
    assert "336 slots (pages) instead of 600 (reserve all): 44.0 % less memory" in compared
    assert "Reservation was never built for dynamic lengths" in compared
    assert "50.0 %" in compared
    assert "refused larger than the <pool>" in page.text("sweeps")
    for study in ("comparisons", "sweeps"):
        for word in ("Input", "Configuration", "Window", "Control"):
            assert word in page.text(study)


def test_every_chart_has_a_name_a_table_and_its_context(page: Any, build: Any) -> None:
    charts = [values for tag, values in page.tags if tag == "div" and values.get("class") == "chart"]
    assert len(charts) == 10
    assert all(values["role"] == "img" and values["aria-label"] for values in charts)
    for values in charts:
        text = page.text(f"figure-{values['data-chart']}")
        assert "Data table" in text
        assert "churn, kvt1-0123456789ab…" in text


def test_buttons_and_regions_can_be_reached_by_keyboard(page: Any) -> None:
    for tag, values in page.tags:
        if tag == "button":
            assert values.get("type") == "button"
        if "scroll" in values.get("class", "").split():
            assert (values.get("tabindex"), values.get("role")) == ("0", "region")
            assert values.get("aria-label")
    first = next(values for tag, values in page.tags if tag == "a")
    assert (first["class"], first["href"]) == ("skip", "#main")


def test_a_cut_record_says_so(build: Any, parse: Any) -> None:
    page = parse(page_text(build_view(build.record(*build.replay()[:3], cut=True))))
    assert "Cut short" in page.text("verdicts")
    assert "never finished" in page.text("verdicts")


def test_ledgers_beyond_the_drawn_ones_keep_their_row(build: Any, parse: Any) -> None:
    lines = [build.engine(), build.trace()]
    for k in range(MAX_DRAWN + 2):
        lines += [build.ledger(case=f"case {k:02d}"), build.content(f"case {k:02d}")]
    page = parse(page_text(build_view(build.record(*lines))))
    assert f"Pictures are drawn for {MAX_DRAWN} of {MAX_DRAWN + 2} ledgers" in page.text("ledgers")
    drawn_or_not = [name for name in page.ids if re.fullmatch(r"ledger-case-\d\d.*r0", name)]
    assert len(drawn_or_not) == MAX_DRAWN + 2


def test_a_long_ledger_costs_little_beyond_plotly(build: Any) -> None:
    names = ("payload", "slack", "cached", "allocated", "freed", "running", "length_p50")
    rows = {name: [(k * k) % 997 for k in range(1500)] for name in names}
    lines = [build.engine(), build.trace(), build.ledger(rows), build.content()]
    assert len(page_text(build_view(build.record(*lines)))) < len(get_plotlyjs()) + 320_000


def test_the_page_is_written_whole(build: Any, tmp_path: Path) -> None:
    path = tmp_path / "new" / "report.html"
    render(full_record(build), path)
    assert path.read_text(encoding="utf-8").endswith("</html>")
    assert [entry.name for entry in path.parent.iterdir()] == ["report.html"]


def test_a_failed_write_keeps_the_older_page_and_leaves_nothing(
    build: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "report.html"
    path.write_text("older")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RecordError, match=r"report\.html: the report could not be written.*No space left"):
        render(build.record(), path)
    assert path.read_text() == "older"
    assert [entry.name for entry in tmp_path.iterdir()] == ["report.html"]


def test_a_folder_that_cannot_be_made_is_a_clear_error(build: Any, tmp_path: Path) -> None:
    (tmp_path / "reports").write_text("a file")
    with pytest.raises(RecordError, match="could not be written"):
        render(build.record(), tmp_path / "reports" / "report.html")


def _fields(row: Any) -> dict[str, Any]:
    return {name: getattr(row, name) for name in row.__struct_fields__}
