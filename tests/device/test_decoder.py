"""The decoder against a dense forward pass of the same weights, written in NumPy in float64.

The bound, relative to the norm of the logits: a layer is some eight sums of at most `intermediate` products,
one after the other. Each adds an error of its own, u (sqrt(terms) + 8) in float32 as in attention's scenes,
and the roundoff of the decoder's dtype where a tensor is stored in a narrower one. They are independent and
add up as squares do; twice that leaves room for the draw.
"""

from __future__ import annotations

import doctest
import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from kvsuite.cache.layout import Dtype
from kvsuite.errors import ConfigError
from tests.device.attention.scenes import ROUNDOFF

if TYPE_CHECKING:
    from types import ModuleType

    import numpy.typing as npt

    from kvsuite.device.attention.call import DecodeAttention, KVView
    from kvsuite.device.decoder import Decoder

    Matrix = npt.NDArray[np.float64]

pytestmark = pytest.mark.usefixtures("torch")
STAGES_OF_A_LAYER = 8


def bound_of(decoder: Decoder, dtype: Dtype) -> float:
    of_sums: float = ROUNDOFF[Dtype.FLOAT32] * (decoder.shape.intermediate_size**0.5 + 8)
    of_storing = 0.0 if dtype is Dtype.FLOAT32 else ROUNDOFF[dtype]
    stages: float = (len(decoder.layers) * STAGES_OF_A_LAYER) ** 0.5
    return 2 * stages * (of_sums + of_storing)


def dense(decoder: Decoder, tokens: list[int]) -> Matrix:
    """Logits [tokens, vocabulary]; positions are turned as complex numbers, heads by a loop."""
    shape, positions = decoder.shape, np.arange(len(tokens))
    pairs = np.arange(shape.head_dim // 2)
    turns = np.exp(1j * positions[:, None] * shape.rope_theta ** (-2.0 * pairs / shape.head_dim))

    def wide(tensor: Any) -> Matrix:
        array: Matrix = tensor.double().numpy()
        return array

    def normed(x: Matrix, weight: Any) -> Matrix:
        scale: Matrix = np.sqrt((x**2).mean(1, keepdims=True) + shape.norm_epsilon)
        return x / scale * wide(weight)

    def turned(head: Matrix) -> Matrix:
        moved = (head[:, : len(pairs)] + 1j * head[:, len(pairs) :]) * turns
        return np.concatenate((moved.real, moved.imag), 1)

    x = wide(decoder.embedding)[tokens]
    for layer in decoder.layers:
        mixed = normed(x, layer.input_norm) @ wide(layer.qkv).T
        heads = np.split(mixed, shape.query_heads + 2 * shape.kv_heads, axis=1)
        keys = [turned(head) for head in heads[shape.query_heads :][: shape.kv_heads]]
        values = heads[shape.query_heads + shape.kv_heads :]
        attended = []
        for index in range(shape.query_heads):
            mine = index // (shape.query_heads // shape.kv_heads)
            scores = turned(heads[index]) @ keys[mine].T / np.sqrt(shape.head_dim)
            scores[np.triu_indices(len(tokens), 1)] = -np.inf
            weights = np.exp(scores - scores.max(1, keepdims=True))
            attended.append(weights / weights.sum(1, keepdims=True) @ values[mine])
        x = x + np.concatenate(attended, 1) @ wide(layer.output).T
        gate, up = np.split(normed(x, layer.mlp_norm) @ wide(layer.gate_up).T, 2, axis=1)
        x = x + (gate / (1 + np.exp(-gate)) * up) @ wide(layer.down).T
    logits: Matrix = normed(x, decoder.final_norm) @ wide(decoder.head).T
    return logits


@dataclass
class Run:
    """Sequences of a poisoned pool with shuffled tables, decoded together."""

    decoder: Decoder
    pool: list[KVView]
    tables: Any

    def step(self, kernel: DecodeAttention, tokens: list[int], lengths: list[int], shift: int = 0) -> Any:
        import torch

        from kvsuite.device.decoder import DecodeBatch

        rows = torch.arange(len(tokens))
        held = torch.tensor(lengths)
        block_size = self.pool[0].block_size
        slots = self.tables[rows, (held - 1) // block_size].long() * block_size + (held - 1) % block_size
        batch = DecodeBatch(torch.tensor(tokens), slots, self.tables[: len(tokens)], (held + shift).int())
        return self.decoder.decode_step(batch, self.pool, kernel)

    def slots_of(self, row: int, start: int, end: int) -> Any:
        import torch

        block_size = self.pool[0].block_size
        tokens = torch.arange(start, end)
        return self.tables[row, tokens // block_size].long() * block_size + tokens % block_size


def running(block_size: int, dtype: Dtype = Dtype.FLOAT32, sequences: int = 3, tokens: int = 24) -> Run:
    import torch

    from kvsuite.device.attention.call import KVView
    from kvsuite.device.decoder import Decoder
    from kvsuite.device.decoder_shapes import decoder_shape
    from kvsuite.device.slots import KVSlots

    shape = decoder_shape("tiny", dtype=dtype)
    width = -(-tokens // block_size)
    slots = KVSlots(shape.layout, sequences * width + 2, block_size)
    pool = [KVView.of_slots(slots, layer) for layer in range(shape.layout.num_layers)]
    for view in pool:
        view.k.fill_(torch.nan)
        view.v.fill_(torch.nan)
    order = torch.randperm(sequences * width + 2, generator=torch.Generator().manual_seed(block_size))
    tables = order[: sequences * width].view(sequences, width).int()
    return Run(Decoder(shape, seed=3), pool, tables)


@pytest.fixture(scope="module", params=["c-prefetch", "gather-sdpa"])
def kernel(request: pytest.FixtureRequest) -> DecodeAttention:
    from kvsuite.device.attention.kernels import kernel_named
    from kvsuite.errors import KernelUnavailable

    try:
        return kernel_named(request.param)
    except KernelUnavailable as error:
        pytest.skip(str(error))


def text(seed: int, count: int) -> list[int]:
    return [int(token) for token in np.random.default_rng(seed).integers(0, 96, count)]


def error_of(got: Any, due: Matrix) -> float:
    return float(np.linalg.norm(got.double().numpy() - due) / np.linalg.norm(due))


@pytest.mark.parametrize("dtype", [Dtype.FLOAT32, Dtype.BFLOAT16], ids=lambda dtype: dtype.value)
@pytest.mark.parametrize("block_size", [1, 4, 16])
def test_token_by_token_equals_a_dense_pass(block_size: int, dtype: Dtype, kernel: DecodeAttention) -> None:
    run = running(block_size, dtype)
    texts = [text(row, 20) for row in range(3)]
    due = [dense(run.decoder, each) for each in texts]
    bound = bound_of(run.decoder, dtype)
    for position in range(20):
        got = run.step(kernel, [each[position] for each in texts], [position + 1] * 3)
        assert error_of(got, np.stack([each[position] for each in due])) <= bound


@pytest.mark.parametrize("chunks", [(20,), (7, 5, 8), (1, 19)])
def test_chunks_of_a_prompt_equal_a_dense_pass_and_decoding_goes_on(
    chunks: tuple[int, ...], kernel: DecodeAttention
) -> None:
    import torch

    run = running(4)
    texts = [text(row, 24) for row in range(3)]
    due = [dense(run.decoder, each) for each in texts]
    bound = bound_of(run.decoder, Dtype.FLOAT32)
    for row, each in enumerate(texts):
        start = 0
        for chunk in chunks:
            end = start + chunk
            got = run.decoder.prefill_chunk(
                torch.tensor(each[start:end]),
                run.slots_of(row, start, end),
                run.tables[row],
                run.pool,
                start=start,
            )
            assert error_of(got, due[row][end - 1]) <= bound
            start = end
    for position in range(20, 24):
        got = run.step(kernel, [each[position] for each in texts], [position + 1] * 3)
        assert error_of(got, np.stack([each[position] for each in due])) <= bound


def test_sequences_of_a_batch_have_their_own_positions(kernel: DecodeAttention) -> None:
    run = running(4)
    first, second = text(1, 9), text(2, 3)
    for position in range(6):
        run.step(kernel, [first[position]], [position + 1])
    got: Any = None
    for position in range(3):
        got = run.step(kernel, [first[6 + position], second[position]], [7 + position, position + 1])
    due = np.stack([dense(run.decoder, first)[-1], dense(run.decoder, second)[-1]])
    assert error_of(got, due) <= bound_of(run.decoder, Dtype.FLOAT32)


@pytest.mark.parametrize("fault", [None, "position", "slot", "table"])
def test_a_wrong_position_slot_or_entry_is_told(fault: str | None, kernel: DecodeAttention) -> None:
    run, each = running(4, sequences=1), text(5, 12)
    for position in range(12):
        right = run.tables.clone()
        if fault == "slot" and position == 7:
            run.tables[0, 1] = right[0, 0]  # written over token 3
        run.step(kernel, [each[position]], [position + 1])
        run.tables = right
    if fault == "table":
        run.tables[0, 0] = run.tables[0, 1]
    got = run.step(kernel, [each[11]], [12], shift=-1 if fault == "position" else 0)
    error = error_of(got, dense(run.decoder, each)[-1:])
    assert (error <= bound_of(run.decoder, Dtype.FLOAT32)) is (fault is None)


def test_attention_is_timed_apart() -> None:
    from kvsuite.device.attention.sdpa import GatherSdpa
    from kvsuite.device.decoder import Decoder
    from kvsuite.device.spans import CpuSpans

    run = running(4)
    ticks = iter(range(100))
    spans = CpuSpans(lambda: float(next(ticks)))
    run.decoder = Decoder(run.decoder.shape, attention_spans=spans)
    run.step(GatherSdpa(), [1, 2, 3], [1, 1, 1])
    assert spans.take_us() == 2e6  # one tick for each of two layers
    assert spans.take_us() == 0


def test_without_a_head_hidden_states_come_back() -> None:
    from kvsuite.device.attention.sdpa import GatherSdpa
    from kvsuite.device.decoder import Decoder

    run = running(4)
    run.decoder = Decoder(run.decoder.shape, with_head=False)
    assert run.step(GatherSdpa(), [1, 90, 3], [1, 1, 1]).shape == (3, 32)
    run.pool.pop()
    with pytest.raises(ConfigError, match="1 views of a pool for 2 layers"):
        run.step(GatherSdpa(), [1], [1])


@pytest.mark.parametrize("name", ["decoder_shapes", "spans"])
def test_the_examples_run(name: str) -> None:
    results = doctest.testmod(importlib.import_module(f"kvsuite.device.{name}"))
    assert (results.failed, results.attempted > 0) == (0, True)


def test_models_that_are_not_llamas_are_refused(torch: ModuleType) -> None:
    del torch
    from kvsuite.device.decoder import Decoder
    from kvsuite.device.decoder_shapes import decoder_shape

    for model in ("falcon-7b", "deepseek-v3"):
        with pytest.raises(ConfigError, match=f"{model} is not shaped like Llama"):
            decoder_shape(model)
    shape = decoder_shape("llama-3.1-8b", num_layers=1)
    assert (shape.kv_heads, shape.head_dim, shape.layout.num_layers) == (8, 128, 1)
    with pytest.raises(ConfigError, match="a decoder in float8_e4m3fn"):
        Decoder(decoder_shape("tiny", dtype=Dtype.FLOAT8_E4M3))
