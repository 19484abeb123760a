"""What a step's parts take on the device under test, kept by pytest-benchmark: run alone, ``-n 0 -m timing``.

No case fails for being slow. Each fails where what was timed computed something else, and figures of another
device are never compared with. Where no kernel's time would say anything of a block size, it is skipped.
"""

from __future__ import annotations

from array import array
from statistics import median
from typing import TYPE_CHECKING

import pytest

from kvsuite.cache.layout import Dtype
from kvsuite.device.decoder_shapes import decoder_shape
from kvsuite.errors import KernelUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import torch

    from kvsuite.device.attention.call import DecodeAttention, KVView
    from kvsuite.device.timing.attention import AttentionBench
    from kvsuite.device.timing.model import DecoderBench
    from kvsuite.plugin.timing import TimingKeeper

pytestmark = pytest.mark.timing

BLOCK_SIZES = (1, 4, 16, 64, 256)
ROUNDS = 9
MODEL, DTYPE = "llama-3.1-8b", Dtype.BFLOAT16
POINTS = {"cpu": (8, 2048), "cuda": (32, 4096)}
"""Sequences, and tokens of context each."""


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """A CPU's clock is that of one thread: the only one then, also inside torch."""
    torch = pytest.importorskip("torch", reason="kernels are timed with torch: install the extra `device`")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def kernel(device: str, one_thread: None) -> DecodeAttention:
    """The kernel whose time decides here."""
    from kvsuite.device.timing.choice import deciding_kernel

    try:
        return deciding_kernel(device, DTYPE)
    except KernelUnavailable as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def point(device: str) -> tuple[int, int]:
    """Sequences, and tokens of context each."""
    return POINTS[device.partition(":")[0]]


@pytest.fixture(scope="module")
def bench(device: str, kernel: DecodeAttention, point: tuple[int, int]) -> AttentionBench:
    """One layer's buffer, which every block size and the contiguous control read."""
    from kvsuite.device.timing.attention import AttentionBench
    from kvsuite.device.timing.choice import control_for

    control, layer = control_for(kernel, device, DTYPE), decoder_shape(MODEL, num_layers=1, dtype=DTYPE)
    return AttentionBench.at_point(kernel, control, layer, point, BLOCK_SIZES, device=device)


@pytest.fixture(scope="module")
def cold(bench: AttentionBench) -> dict[tuple[str, int | None], tuple[float, ...]]:
    """The microseconds of each round after caches were swept, by part and block size, taken in turn."""
    return bench.cold(ROUNDS)


@pytest.fixture(scope="module")
def layer(device: str, kernel: DecodeAttention, bench: AttentionBench) -> DecoderBench:
    """One layer of random weights, over the same buffer."""
    from kvsuite.device.spans import spans_on
    from kvsuite.device.timing.model import DecoderBench

    spans, inner = spans_on(device), spans_on(device)
    return DecoderBench(bench.shape, kernel, bench.view, device=device, spans=spans, inner=inner)


def gathered(view: KVView, table: torch.Tensor, block_size: int) -> KVView:
    """Return a copy of the blocks that a table names, in its order, as blocks of ``block_size`` tokens."""
    from kvsuite.device.attention.call import KVView

    blocks = table.flatten().long()
    return KVView(*(part[blocks].view(-1, block_size, *part.shape[2:]) for part in (view.k, view.v)))


def shape_of(point: tuple[int, int]) -> dict[str, int | str]:
    """Return what is kept of the shape beside figures."""
    sequences, context = point
    return {"sequences": sequences, "context": context, "model": MODEL, "dtype": DTYPE.value}


def check_size(kernel: DecodeAttention, block_size: int) -> None:
    if block_size not in kernel.block_sizes:
        pytest.skip(f"{kernel.name} takes {kernel.block_sizes}")


@pytest.mark.parametrize("block_size", BLOCK_SIZES)
def test_decode_attention(
    block_size: int,
    device: str,
    kernel: DecodeAttention,
    point: tuple[int, int],
    bench: AttentionBench,
    cold: dict[tuple[str, int | None], tuple[float, ...]],
    kv_timing: TimingKeeper,
    summary_line: Callable[[str], None],
) -> None:
    """Through a shuffled table, beside contiguous memory: close to float64, and on a CPU the control's bits.

    The control reads a copy of the same blocks in the order of the table.
    """
    import torch

    from kvsuite.device.attention.exact import error_bound, exact_attention, relative_error

    check_size(kernel, block_size)
    sequences, context = point
    view, table = bench.view(block_size), bench.table(sequences, context, block_size)
    query, lengths, scale = bench.asked(sequences, context)
    out = kernel(query, view, table, lengths, block_size=block_size, scale=scale)
    assert str(out.device) == device
    exact = exact_attention(query, view, table, lengths, scale=scale)
    bound = error_bound(DTYPE, head_dim=view.head_dim, longest=context)
    assert relative_error(out, exact) <= bound
    if device == "cpu":
        copy = gathered(view, table, context)
        whole = bench.control(query, copy, None, lengths, block_size=context, scale=scale)
        assert torch.equal(out, whole)

    paged, control = cold["attention", block_size], cold["control", None]
    ratio = median(one / other for one, other in zip(paged, control, strict=True))
    ceiling = bench.read_bytes / median(cold["read", None])
    share = bench.pool.nbytes / median(paged) / ceiling
    kv_timing.keep(
        paged,
        kernel=kernel,
        group="decode attention",
        block_size=block_size,
        shape=shape_of(point),
        control=bench.control.name,
        ratio_to_control=ratio,
        share_of_bandwidth=share,
    )
    summary_line(
        f"timing: {kernel.name}, {sequences} x {context}, block {block_size}: {median(paged):,.0f} us, "
        f"{ratio:.3f} of contiguous, {share:.0%} of {'plain reading' if device == 'cpu' else 'a plain copy'}"
    )


@pytest.mark.parametrize("block_size", [1, 16])
def test_a_decode_step_of_one_layer(
    block_size: int,
    layer: DecoderBench,
    kernel: DecodeAttention,
    point: tuple[int, int],
    bench: AttentionBench,
    kv_timing: TimingKeeper,
    summary_line: Callable[[str], None],
) -> None:
    """A whole layer of random weights: the same bits as through a table in order over a copy in order."""
    import torch

    check_size(kernel, block_size)
    sequences, context = point
    view, table = bench.view(block_size), bench.table(sequences, context, block_size)
    rows, lengths = list(table.cpu().numpy()), [context] * sequences
    took = [layer.layer_us(rows, lengths, view) for _ in range(ROUNDS)]

    def step(pool: KVView, blocks: torch.Tensor) -> torch.Tensor:
        batch = layer.batch(blocks.cpu(), torch.tensor(lengths, dtype=torch.int32), block_size)
        return layer.decoder.decode_step(batch, [pool], kernel)

    copy = gathered(view, table, block_size)
    shuffled, in_order = step(view, table), step(copy, torch.arange(table.numel()).int().view(table.shape))
    assert torch.equal(shuffled, in_order)
    assert torch.isfinite(shuffled).all()

    attention = median(one / (one + rest) for one, rest in took)
    kv_timing.keep(
        [one + rest for one, rest in took],
        kernel=kernel,
        group="decode step of one layer",
        block_size=block_size,
        shape=shape_of(point),
        share_of_attention=attention,
    )
    summary_line(
        f"timing: one layer of {MODEL}, {sequences} x {context}, block {block_size}: "
        f"{median(map(sum, took)):,.0f} us, {attention:.0%} of it attention"
    )


@pytest.mark.parametrize("block_size", [1, 16, 256])
def test_upload_of_block_tables(
    block_size: int, device: str, one_thread: None, point: tuple[int, int], kv_timing: TimingKeeper
) -> None:
    """A step's tables, filled on the host and copied: every entry is on the device."""
    from kvsuite.device.spans import spans_on
    from kvsuite.device.timing.rounds import in_rounds
    from kvsuite.device.timing.upload import TableUpload, upload_tasks

    sequences, context = point
    entries = context // block_size
    (timing,) = in_rounds(list(upload_tasks([(sequences, entries)], device, spans_on(device))), ROUNDS)
    tables = [array("i", range(row * entries, (row + 1) * entries)) for row in range(sequences)]
    got = TableUpload(sequences, entries, device)(tables)
    assert str(got.device) == device
    assert got.flatten().tolist() == list(range(sequences * entries))

    kv_timing.keep(
        timing.rounds_us,
        group="upload of block tables",
        block_size=block_size,
        shape={"sequences": sequences, "entries": entries},
    )
