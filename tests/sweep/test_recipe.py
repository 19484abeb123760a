"""Stored decisions: what makes them stale, what changes them, and what is refused as one."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec
import pytest

from kvsuite.cache.layout import Dtype, model_layout
from kvsuite.errors import ConfigError
from kvsuite.replay.batch import SchedulerConfig
from kvsuite.sweep.recipe import (
    Recipe,
    StoredDecision,
    changes,
    compare,
    read_decision,
    recipe_hash,
    write_decision,
)
from kvsuite.sweep.slo import Slo

if TYPE_CHECKING:
    from pathlib import Path

RECIPE = Recipe(
    sizes=(8, 16),
    engine="reference 1 0badcafe",
    engine_options=(("null_blocks", 1),),
    kernel="paged_attention 12345678",
    layout=model_layout("tiny"),
    sharing=True,
    scheduler=SchedulerConfig(),
    watermark_blocks=0,
    max_model_tokens=4096,
    pool_bytes=2**20,
    trace_hash="kvt1-aa",
    slo=Slo(500_000, 50_000),
    device="a processor",
)


def decision(recipe: Recipe = RECIPE, shipped: str | None = "block 16", **more: object) -> StoredDecision:
    flat = recipe.flat()
    fields: dict[str, object] = {
        "result": "ship",
        "shipped": shipped,
        "tied": [],
        "projected": False,
        "sentence": "Ship it.",
        "recipe": flat,
        "recipe_hash": recipe_hash(flat),
        "rows": [],
    }
    return StoredDecision(**(fields | more))  # type: ignore[arg-type]


def test_every_part_that_a_decision_rests_on_has_a_name() -> None:
    names = {name.partition(".")[0] for name in RECIPE.flat()}
    assert names == {
        "engine",
        "kernel",
        "layout",
        "dtype",
        "sharing",
        "scheduler",
        "pool_bytes",
        "trace_hash",
        "slo",
        "device",
        "sizes",
    }


def test_equal_decisions_are_the_same() -> None:
    assert compare(decision(), decision()).said == "same"
    assert not compare(decision(), decision()).changed


CHANGED: list[tuple[dict[str, object], str]] = [
    ({"engine": "reference 2 0badcafe"}, "engine changed from reference 1 0badcafe to reference 2 0badcafe"),
    ({"engine_options": ()}, "engine.null_blocks changed from 1 to nothing"),
    ({"kernel": "other"}, "kernel changed from paged_attention 12345678 to other"),
    ({"sharing": False}, "sharing changed from true to false"),
    (
        {"scheduler": SchedulerConfig(max_sequences=128)},
        "scheduler.max_sequences changed from 256 to 128",
    ),
    ({"watermark_blocks": 3}, "scheduler.watermark_blocks changed from 0 to 3"),
    ({"max_model_tokens": 1}, "scheduler.max_model_tokens changed from 4096 to 1"),
    ({"pool_bytes": 2**21}, "pool_bytes changed from 1048576 to 2097152"),
    ({"trace_hash": "kvt1-bb"}, "trace_hash changed from kvt1-aa to kvt1-bb"),
    ({"slo": Slo(500_000, 40_000)}, "slo.itl_us changed from 50000 to 40000"),
    ({"device": "another"}, "device changed from a processor to another"),
    ({"varied": "pool=1MiB,2MiB"}, "varied changed from nothing to pool=1MiB,2MiB"),
]


@pytest.mark.parametrize(("change", "named"), CHANGED, ids=[next(iter(change)) for change, _ in CHANGED])
def test_a_recipe_that_changed_is_stale_and_names_it(change: dict[str, object], named: str) -> None:
    now = decision(replace(RECIPE, **change), shipped="block 8")  # type: ignore[arg-type]
    assert compare(decision(), now).said == f"recipe is stale: {named}"
    assert compare(decision(), now).changed
    assert now.recipe_hash != decision().recipe_hash


def test_another_dtype_changes_the_layout_too() -> None:
    now = decision(replace(RECIPE, layout=model_layout("tiny").with_(dtype=Dtype.FLOAT32)))
    assert "dtype changed from bfloat16 to float32" in compare(decision(), now).said
    assert "layout changed from" in compare(decision(), now).said


def test_another_size_on_the_same_recipe() -> None:
    compared = compare(decision(), decision(shipped="block 32"))
    assert (compared.said, compared.changed) == (
        "shipped size changed: from block 16 to block 32",
        True,
    )
    gone = decision(shipped=None, result="SLO unreachable on this device")
    assert compare(decision(), gone).said == (
        "shipped size changed: from block 16 to SLO unreachable on this device"
    )


def test_a_decision_comes_back_from_its_file_and_equal_ones_have_equal_bytes(tmp_path: Path) -> None:
    one, two = tmp_path / "one.json", tmp_path / "two.json"
    write_decision(one, decision())
    write_decision(two, decision())
    assert one.read_bytes() == two.read_bytes()
    assert read_decision(one) == decision()


def test_a_file_that_is_none_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "decision.json"
    with pytest.raises(ConfigError, match="no stored decision; sweep without --decision"):
        read_decision(path)
    path.write_text("{}")
    with pytest.raises(ConfigError, match="no stored decision, Object missing required field"):
        read_decision(path)
    write_decision(path, msgspec.structs.replace(decision(), schema_version=9))
    with pytest.raises(ConfigError, match=r"kvsuite.decision 9, expected kvsuite.decision 1"):
        read_decision(path)


def test_a_recipe_that_was_edited_is_told(tmp_path: Path) -> None:
    path = tmp_path / "decision.json"
    write_decision(path, decision())
    text = path.read_text()
    assert text.count("1048576") == 1
    path.write_text(text.replace("1048576", "2097152"))
    with pytest.raises(ConfigError, match="it was edited; sweep again"):
        read_decision(path)


def test_the_length_of_a_step_is_no_part_where_steps_last_what_they_cost() -> None:
    other = replace(RECIPE, scheduler=replace(RECIPE.scheduler, step_us=1))
    assert changes(RECIPE.flat(), other.flat()) == []


def test_other_sizes_are_another_recipe() -> None:
    assert changes(RECIPE.flat(), replace(RECIPE, sizes=(8,)).flat()) == ["sizes changed from 8,16 to 8"]
