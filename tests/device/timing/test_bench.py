"""A bench on a clock that only the kernel moves: what is called, in which order, and what comes of it."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest

from kvsuite.errors import ConfigError, KernelUnavailable, UnsupportedBlockSize

if TYPE_CHECKING:
    from pathlib import Path

    from kvsuite.device.timing.attention import AttentionBench
    from kvsuite.device.timing.bench import StepBench
    from kvsuite.device.timing.rounds import Timing
    from tests.device.timing.fakes import FakeKernel

pytestmark = pytest.mark.usefixtures("torch")
POINTS = ((1, 64), (2, 256), (4, 128))
SIZES = (1, 4, 16, 64)


def attention_bench(kernel: FakeKernel, clock: object) -> AttentionBench:
    from kvsuite.device.decoder_shapes import decoder_shape
    from kvsuite.device.spans import CpuSpans
    from kvsuite.device.timing.attention import AttentionBench

    return AttentionBench(
        kernel,
        kernel,
        decoder_shape("tiny", num_layers=1),
        POINTS,
        SIZES,
        min_tokens=1,
        device="cpu",
        spans=CpuSpans(clock),  # type: ignore[arg-type]
        cache_bytes=4096,
    )


def step_bench(sizes: tuple[int, ...] = SIZES) -> tuple[StepBench, FakeKernel]:
    from kvsuite.device.decoder_shapes import decoder_shape
    from kvsuite.device.spans import CpuSpans
    from kvsuite.device.timing.bench import StepBench
    from kvsuite.device.timing.grid import SMALL_GRID
    from tests.device.timing.fakes import FakeClock, FakeKernel

    clock = FakeClock()
    kernel = FakeKernel(clock)
    shape = decoder_shape("tiny", num_layers=1)
    bench = StepBench(kernel, shape, SMALL_GRID, sizes, make_spans=lambda device: CpuSpans(clock))
    return bench, kernel


def test_each_size_is_called_beside_the_control_in_every_round_untimed_warm_and_cold() -> None:
    from kvsuite.device.timing.rounds import in_rounds
    from tests.device.timing.fakes import FakeClock, FakeKernel

    clock = FakeClock()
    kernel = FakeKernel(clock)
    bench = attention_bench(kernel, clock)
    swept_before: list[int] = []
    bench.sweep_caches = lambda: swept_before.append(len(kernel.calls))  # type: ignore[method-assign]
    tasks = [task for task in bench.tasks() if task.what[0].part != "read"]
    in_rounds(tasks, 9)
    due = {(n, context, size) for n, context in POINTS for size in (*SIZES, None)}
    triples = [kernel.calls[start : start + 3] for start in range(0, len(kernel.calls), 3)]
    assert all(len(set(triple)) == 1 for triple in triples)
    assert swept_before == [place + 2 for place in range(0, len(kernel.calls), 3)]
    rounds = [
        [triple[0] for triple in triples[start : start + len(due)]]
        for start in range(0, len(triples), len(due))
    ]
    assert len(rounds) == 9
    assert all(set(each) == due for each in rounds)
    assert len({tuple(each) for each in rounds}) == 9


def test_what_the_kernel_takes_is_what_is_measured() -> None:
    from tests.device.timing.fakes import CALL_US, ENTRY_US, SEQUENCE_US, TOKEN_US

    bench, _ = step_bench()
    found = Counter()  # type: ignore[var-annotated]
    for timing in bench.measure():
        what, load = timing.what, timing.what.load
        found[what.part, what.cold] += 1
        if what.part in ("attention", "control"):
            entries = load.context_tokens / what.block_size if what.block_size else 0
            due = CALL_US + SEQUENCE_US * load.sequences + TOKEN_US * load.context_tokens + ENTRY_US * entries
            assert timing.rounds_us == pytest.approx([due] * 9)
        elif what.part == "rest":
            assert timing.rounds_us == pytest.approx([0.0] * 9, abs=1e-6)  # all of it was attention
    assert found["attention", True] == found["attention", False] == len(POINTS) * len(SIZES)
    assert found["control", True] == found["control", False] == len(POINTS)
    assert (found["rest", False], found["head", False]) == (2, 2)
    assert (found["prefill", False], found["upload", False]) == (3, 3)


def test_pairs_of_a_chunk_are_a_token_times_those_it_reads() -> None:
    """Chunks (8, 0), (32, 0) and (16, 64): 1+..+8, 1+..+32, and 16 times 64 with 1+..+16."""
    bench, _ = step_bench()
    loads = [t.what.load for t in bench.measure() if t.what.part == "prefill"]
    assert [load.prefill_pairs for load in loads] == [36, 528, 1024 + 136]


def test_a_table_is_a_shuffle_of_the_blocks_that_the_control_reads() -> None:
    from tests.device.timing.fakes import FakeClock, FakeKernel

    clock = FakeClock()
    bench = attention_bench(FakeKernel(clock), clock)
    for size in SIZES:
        blocks = bench.table(4, 128, size).flatten().tolist()
        assert sorted(blocks) == list(range(4 * 128 // size))
        assert blocks != sorted(blocks)
        assert bench.view(size).k.data_ptr() == bench.view(128).k.data_ptr() == bench.pool.buffer.data_ptr()


def test_a_size_that_the_kernel_does_not_take_is_left_out_with_the_reason() -> None:
    bench, _ = step_bench((16, 128))
    assert bench.sizes == (16,)
    assert bench.refused == {128: "fake takes any size up to 64"}
    with pytest.raises(UnsupportedBlockSize, match="up to 64"):
        step_bench((128,))


def test_a_decode_step_of_a_batch_is_its_attention_and_the_rest() -> None:
    import numpy as np

    from tests.device.timing.fakes import CALL_US, ENTRY_US, SEQUENCE_US, TOKEN_US

    bench, kernel = step_bench()
    tables = [np.array(blocks, np.int32) for blocks in ([7, 3, 1], [5], [2, 9])]
    took = bench.decode_us(tables, [33, 4, 32], 16)
    assert kernel.calls[-1] == (3, 23, 16)
    assert took.attention_us == pytest.approx(CALL_US + 3 * SEQUENCE_US + 69 * TOKEN_US + 6 * ENTRY_US)
    assert took.rest_us == pytest.approx(0, abs=1e-6)


def test_the_upload_brings_every_live_entry() -> None:
    from array import array

    from kvsuite.device.timing.upload import TableUpload

    upload = TableUpload(3, 4, "cpu")
    got = upload([array("i", [7, 3, 1]), array("i", [5]), array("i", [2, 9, 8, 6])])
    assert [row[:count].tolist() for row, count in zip(got, (3, 1, 4), strict=True)] == [
        [7, 3, 1],
        [5],
        [2, 9, 8, 6],
    ]


def test_without_a_compiler_no_kernel_decides(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from kvsuite.cache.layout import Dtype
    from kvsuite.device.timing.choice import deciding_kernel

    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    with pytest.raises(KernelUnavailable, match=r"no latency verdict can be given on cpu: .*no C compiler"):
        deciding_kernel("cpu", Dtype.BFLOAT16)
    with pytest.raises(KernelUnavailable, match=r"no latency verdict can be given on cpu: .*no C compiler"):
        deciding_kernel("cpu", Dtype.BFLOAT16, "c-plain")


def test_a_kernel_whose_time_says_nothing_does_not_decide() -> None:
    from kvsuite.cache.layout import Dtype
    from kvsuite.device.timing.choice import deciding_kernel

    with pytest.raises(KernelUnavailable, match=r"no latency verdict.*gather-sdpa says nothing"):
        deciding_kernel("cpu", Dtype.BFLOAT16, "gather-sdpa")
    with pytest.raises(ConfigError, match="unknown attention kernel 'fast'"):
        deciding_kernel("cpu", Dtype.BFLOAT16, "fast")


@pytest.mark.parametrize(
    ("sizes", "due"),
    [({"index0": "32K", "index3": "32768K"}, 64 << 20), ({}, 64 << 20), ({"index2": "2M"}, 4 << 20)],
)
def test_the_last_cache_is_swept_twice_over(tmp_path: Path, sizes: dict[str, str], due: int) -> None:
    from kvsuite.device.timing.readings import cache_bytes

    for name, size in sizes.items():
        folder = tmp_path / "sys/devices/system/cpu/cpu0/cache" / name
        folder.mkdir(parents=True)
        (folder / "size").write_text(f"{size}\n")
    assert cache_bytes("cpu", tmp_path) == due


def test_clocks_are_read_where_they_can_be(tmp_path: Path) -> None:
    from kvsuite.device.timing.readings import clocks_mhz

    assert clocks_mhz("cpu", tmp_path) == {}
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/cpuinfo").write_text("cpu MHz\t\t: 2500.5\nflags: x\ncpu MHz\t\t: 3100.0\n")
    assert clocks_mhz("cpu", tmp_path) == {"slowest processor": 2500.5, "fastest processor": 3100.0}


def test_a_kernel_that_charges_for_entries_costs_more_at_small_blocks() -> None:
    """A token of context pays its share of an entry, 4 / b us, beside its own 0.5."""
    from kvsuite.sweep.fit import PartTimings
    from tests.device.timing.fakes import CALL_US, ENTRY_US, SEQUENCE_US, TOKEN_US

    bench, _ = step_bench()
    cold = [t for t in bench.measure() if t.what.part == "attention" and t.what.cold]
    by_size: dict[int | None, list[Timing]] = {
        size: [t for t in cold if t.what.block_size == size] for size in SIZES
    }
    fits = {size: next(PartTimings("attention", {size: mine}).fits()) for size, mine in by_size.items()}
    for size, fit in fits.items():
        assert fit.costs_us == pytest.approx((CALL_US, SEQUENCE_US, TOKEN_US + ENTRY_US / (size or 1)))
    together = {fit.block_size: fit.costs_us for fit in PartTimings("attention", by_size).fits()}
    assert together == {size: pytest.approx(fit.costs_us) for size, fit in fits.items()}
