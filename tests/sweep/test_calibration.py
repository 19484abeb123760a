"""A calibration: the sum of its parts, repeats drawn from it, its file, and who may not use it."""

from __future__ import annotations

import re
from dataclasses import astuple
from typing import TYPE_CHECKING

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsuite.cache.layout import Dtype, model_layout
from kvsuite.device.timing.rounds import Load, Timing
from kvsuite.errors import ConfigError, RecordError
from kvsuite.sweep.calibrate import CalibratedCosts, fit_all
from kvsuite.sweep.calibration_file import (
    layout_hash,
    read_calibration,
    subject_in,
    write_calibration,
)
from kvsuite.sweep.calibration_view import largest_load, quartiles, read_bytes_per_s, size_figures
from kvsuite.sweep.clock import FEATURES, StepCosts
from kvsuite.sweep.manager_time import PROMPT_TOKENS, SEQUENCES, STEPS, manager_timings
from tests.sweep.calibrations import SIZES, TOKEN_US, calibration, subject, timings

if TYPE_CHECKING:
    from pathlib import Path

NOISY = calibration(0.1, seed=3)


def values(costs: StepCosts) -> list[float]:
    return list(astuple(costs))


def test_a_step_is_the_sum_of_its_parts_each_times_its_factor() -> None:
    """32 layers of attention (40, 6, 2 us at block 16), of the rest (500, 20) and of a chunk (8, 0.25), whose
    own call of 300 is no part of a step; 8 heads of (100, 5); an upload of (4, 1, 0.01); a manager of
    (0.5, 0.125)."""
    costs = calibration().costs(16)
    assert costs.base_us == pytest.approx(32 * (40 + 500) + 8 * 100 + 4)
    assert costs.sequence_us == pytest.approx(32 * (6 + 20) + 8 * 5 + 1 + 0.5)
    assert costs.context_token_us == pytest.approx(32 * 2)
    assert costs.prefill_token_us == pytest.approx(32 * 8)
    assert costs.prefill_pair_us == pytest.approx(32 * 0.25)
    assert costs.table_entry_us == pytest.approx(0.01)
    assert costs.block_us == pytest.approx(0.125)
    one_of_each = [1] * len(FEATURES)
    assert costs.step_us(one_of_each) == pytest.approx(18084 + 873.5 + 64 + 256 + 8 + 0.01 + 0.125)


@pytest.mark.parametrize("size", SIZES)
def test_block_sizes_differ_by_what_a_token_costs(size: int) -> None:
    costs, other = calibration().costs(size), calibration().costs(16)
    assert costs.context_token_us == pytest.approx(32 * TOKEN_US[size])
    assert (costs.base_us, costs.sequence_us) == pytest.approx((other.base_us, other.sequence_us))


def test_a_control_pays_for_its_own_attention_and_for_no_table_and_no_block() -> None:
    """32 layers of attention (24, 5, 1 us) in place of a block's; 0.5 us of the manager a sequence."""
    assert values(calibration().control_costs()) == pytest.approx(
        [32 * (24 + 500) + 8 * 100 + 4, 32 * (5 + 20) + 8 * 5 + 1 + 0.5, 32 * 1, 32 * 8, 32 * 0.25, 0, 0]
    )
    assert CalibratedCosts(calibration()).draw_control(0) == calibration().control_costs()


def test_a_control_pays_the_manager_at_the_largest_block() -> None:
    """A call takes 0.5 us in blocks of 1 and 16 tokens, and 0.75 in blocks of 64."""
    given = [
        Timing(t.what, tuple(us + 0.25 * t.what.load.sequences for us in t.rounds_us))
        if (t.what.part, t.what.block_size) == ("manager", 64)
        else t
        for t in timings()
    ]
    dear = msgspec.structs.replace(calibration(), timings=given, fits=fit_all(given))
    more = dear.control_costs().sequence_us - calibration().control_costs().sequence_us
    assert more == pytest.approx(0.25)
    assert dear.draw_control(1).sequence_us == pytest.approx(dear.control_costs().sequence_us)


def test_a_calibration_without_a_control_has_costs_of_sizes_alone() -> None:
    kept = [timing for timing in calibration().timings if timing.what.part != "control"]
    made = msgspec.structs.replace(calibration(), timings=kept)
    assert made.costs(16) == calibration().costs(16)
    assert made.draw(1) == calibration().draw(1)
    for repeat in (0, 1):
        with pytest.raises(ConfigError, match="the contiguous control was not timed: calibrate again"):
            CalibratedCosts(made).draw_control(repeat)


def test_a_size_that_was_not_timed_has_no_costs() -> None:
    with pytest.raises(
        ConfigError, match="block size 8 in this calibration: it was not timed; it has 1, 16, 64"
    ):
        calibration().costs(8)
    with pytest.raises(ConfigError, match=r"block size 256 .*: fake takes any size up to 64"):
        calibration().costs(256)


def test_a_part_that_was_not_timed_is_missed() -> None:
    with pytest.raises(ConfigError, match="head was not timed"):
        fit_all(timing for timing in timings() if timing.what.part != "head")


@given(st.integers(0, 2**32))
def test_a_draw_is_the_same_for_the_same_seed_and_never_negative(seed: int) -> None:
    drawn = NOISY.draw(seed)
    assert drawn == NOISY.draw(seed)
    assert set(drawn) == set(SIZES)
    assert all(min(values(costs)) >= 0 for costs in drawn.values())


def test_draws_differ_by_the_noise_alone() -> None:
    """Nine rounds of one value have one median, whichever of them are drawn."""
    quiet = calibration()
    for size, costs in quiet.draw(1).items():
        assert values(costs) == pytest.approx(values(quiet.costs(size)))
    tokens = {NOISY.draw(seed)[16].context_token_us for seed in range(20)}
    assert len(tokens) > 10
    assert all(0.9 * 64 < token < 1.1 * 64 for token in tokens)


def test_rounds_are_drawn_alike_for_all_sizes() -> None:
    """Were every size as noisy as the others in the same rounds, its draws would go with theirs."""
    given_calibration = calibration()
    slow = [1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7, 1.8]
    swung = [
        msgspec.convert(
            {"what": t.what, "rounds_us": [us * f for us, f in zip(t.rounds_us, slow, strict=True)]}, type(t)
        )
        for t in given_calibration.timings
    ]
    together = msgspec.structs.replace(given_calibration, timings=swung)
    for seed in range(8):
        drawn = together.draw(seed)
        ratios = {round(drawn[size].context_token_us / (32 * TOKEN_US[size]), 9) for size in SIZES}
        ratios.add(round(together.draw_control(seed).context_token_us / 32, 9))
        assert len(ratios) == 1


def test_repeat_zero_is_what_was_fitted_and_others_are_drawn() -> None:
    costs = CalibratedCosts(NOISY)
    assert costs.draw(16, 0) == costs.costs(16) == NOISY.costs(16)
    assert costs.draw(16, 3) == NOISY.draw(3)[16]
    assert costs.draw_control(0) == NOISY.control_costs()
    assert costs.draw_control(3) == NOISY.draw_control(3) != NOISY.control_costs()
    assert (costs.device, costs.kernel) == ("A processor", "c-prefetch 00112233445566ff")
    with pytest.raises(ConfigError, match="block size 8"):
        costs.draw(8, 3)


def test_a_file_gives_back_what_was_written(tmp_path: Path) -> None:
    path = tmp_path / "new" / "calibration.json"
    write_calibration(path, NOISY)
    back = read_calibration(path, subject())
    assert back == NOISY
    assert back.draw(4) == NOISY.draw(4)
    assert [each.name for each in path.parent.iterdir()] == ["calibration.json"]


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"device": "cuda"}, "device cpu, wanted cuda"),
        ({"device_name": "Another"}, "device name A processor, wanted Another"),
        ({"kernel": "c-plain"}, "kernel c-prefetch, wanted c-plain"),
        ({"kernel_hash": "ff"}, "source of the kernel 00112233445566ff, wanted ff"),
        ({"layout": "tiny", "layout_hash": "aa"}, r"layout llama-3.1-8b .*, wanted tiny \(aa\)"),
    ],
)
def test_another_device_kernel_or_layout_is_refused_by_name(
    tmp_path: Path, changes: dict[str, str], told: str
) -> None:
    path = tmp_path / "calibration.json"
    write_calibration(path, NOISY)
    with pytest.raises(ConfigError, match=told) as refused:
        read_calibration(path, subject(**changes))
    assert ("projection" in str(refused.value)) == any(name.startswith("device") for name in changes)


def test_a_projection_may_come_from_another_device_and_says_so(tmp_path: Path) -> None:
    path = tmp_path / "calibration.json"
    write_calibration(path, NOISY)
    assert not read_calibration(path, subject(), projected=True).projected
    elsewhere = subject(device="cuda", device_name="A card", kernel="triton", kernel_hash="ff")
    assert read_calibration(path, elsewhere, projected=True).projected
    with pytest.raises(ConfigError, match="kernel c-prefetch, wanted triton"):
        read_calibration(path, subject(kernel="triton"), projected=True)
    with pytest.raises(ConfigError, match="layout"):
        read_calibration(path, subject(device="cuda", layout_hash="aa"), projected=True)


@given(st.data())
def test_a_damaged_file_is_refused(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    path = tmp_path_factory.mktemp("damaged") / "calibration.json"
    write_calibration(path, calibration())
    whole = path.read_bytes()
    place = data.draw(st.integers(0, len(whole) - 2))
    if data.draw(st.booleans()):
        path.write_bytes(whole[:place])
    else:
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
    with pytest.raises(RecordError, match=re.escape(str(path))):
        read_calibration(path, subject())


def test_what_is_left_of_a_calibration_is_told_from_other_files(tmp_path: Path) -> None:
    path = tmp_path / "calibration.json"
    write_calibration(path, calibration())
    assert subject_in(path) == subject()
    path.write_bytes(path.read_bytes()[:2000])
    with pytest.raises(RecordError, match=r"calibration\.json: damaged"):
        subject_in(path)
    path.write_text('{"device": "d", "kernel": "k", "blocks": {}}', encoding="utf-8")
    assert subject_in(path) is None
    assert subject_in(tmp_path / "none.json") is None


def test_a_missing_file_and_another_schema_are_told(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=r"none\.json: No such file"):
        read_calibration(tmp_path / "none.json", subject())
    path = tmp_path / "calibration.json"
    write_calibration(path, msgspec.structs.replace(NOISY, schema=99))
    with pytest.raises(RecordError, match="schema 99, this kvsuite reads 1"):
        read_calibration(path, subject())


def test_a_folder_in_the_way_leaves_it_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "calibration.json").mkdir()
    with pytest.raises(RecordError, match="it is a folder"):
        write_calibration(tmp_path / "calibration.json", NOISY)
    assert [each.name for each in tmp_path.iterdir()] == ["calibration.json"]


@pytest.mark.parametrize(
    "other",
    [
        model_layout("llama-3.1-8b").with_(num_layers=1),
        model_layout("llama-3.1-8b").with_(dtype=Dtype.FLOAT16),
        model_layout("llama-3.1-70b"),
    ],
    ids=["depth", "dtype", "model"],
)
def test_layouts_have_hashes_of_their_own(other: object) -> None:
    layout = model_layout("llama-3.1-8b")
    assert layout_hash(layout) == layout_hash(model_layout("llama-3.1-8b"))
    assert layout_hash(layout) != layout_hash(other)  # type: ignore[arg-type]


def test_figures_are_those_of_the_largest_load() -> None:
    """32 sequences of 128 tokens: at block 16, 40 + 6 * 32 + 2 * 4096 = 8,424 us for 4,096 tokens of 4,096
    bytes; plain reading moves 10 MB in a millisecond. A layer's rest takes 500 + 20 * 32, and 8 heads of 260
    stand beside 32 layers. The control pays 24 us, and 5 a sequence, and 1 a token."""
    made = calibration()
    assert largest_load(made) == Load(sequences=32, context_tokens=4096)
    assert read_bytes_per_s(made) == pytest.approx(1e10)
    figures = {each.block_size: each for each in size_figures(made)}
    assert list(figures) == [1, 16, 64]
    assert figures[16].attention_us == pytest.approx((8424, 8424, 8424))
    assert figures[16].read_share == pytest.approx(4096 * 4096 / 8424e-6 / 1e10)
    assert figures[16].attention_share == pytest.approx(32 * 8424 / (32 * (8424 + 1140) + 8 * 260))
    loads = [(1, 64), (1, 1024), (8, 2048), (32, 4096)]
    ratios = sorted((40 + 6 * n + 2 * t) / (24 + 5 * n + t) for n, t in loads)
    assert figures[16].ratio.middle == pytest.approx((ratios[1] + ratios[2]) / 2)
    assert figures[16].warm_ratio == pytest.approx(figures[16].ratio)


def test_without_plain_reading_no_share_is_told() -> None:
    kept = [timing for timing in calibration().timings if timing.what.part != "read"]
    made = msgspec.structs.replace(calibration(), timings=kept)
    assert read_bytes_per_s(made) is None
    assert {figures.read_share for figures in size_figures(made)} == {None}
    assert quartiles([4.0, 1.0, 3.0, 2.0, 5.0]) == (2.0, 3.0, 4.0)


def test_the_manager_is_timed_by_what_its_calls_do() -> None:
    """A clock that moves a microsecond a reading: every call lasts one, however many blocks it moves. Prompts
    of 1024..1087 tokens take 64 to 68 blocks of 16; 16 steps take one more each."""
    ticks = iter(range(10**6))
    found = manager_timings((16,), 9, lambda: next(ticks) * 1e-6)
    held = sum(-(-(PROMPT_TOKENS + number) // 16) for number in range(SEQUENCES))
    grown = sum(-(-(PROMPT_TOKENS + number + STEPS) // 16) for number in range(SEQUENCES)) - held
    loads = [timing.what.load for timing in found]
    assert loads == [Load(blocks=2 * held + grown), Load(sequences=SEQUENCES * STEPS, blocks=grown)]
    assert grown == SEQUENCES
    assert [timing.rounds_us for timing in found] == [
        pytest.approx((2.0,) * 9),
        pytest.approx((1.0,) * 9),
    ]
