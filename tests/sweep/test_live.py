"""Decode batches of a replay, and how far a model lies from what a device takes for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from kvsuite.cache.layout import model_layout
from kvsuite.device.timing.rounds import DecodeTime, Load
from kvsuite.errors import ConfigError
from kvsuite.replay.batch import SchedulerConfig
from kvsuite.sweep.live import LiveBatch, decode_batches, live_steps, modelled_step_us
from kvsuite.trace.model import TraceSource
from kvsuite.trace.rows import Row, trace_of
from kvsuite.trace.synthetic import synthetic
from tests.sweep.calibrations import calibration

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvsuite.engine.snapshot import Int32Array

TINY = model_layout("tiny")


def batches(block_size: int, count: int = 6) -> list[LiveBatch]:
    return decode_batches(
        synthetic("churn"), TINY, SchedulerConfig(), block_size=block_size, pool_tokens=4096, count=count
    )


@pytest.mark.parametrize("block_size", [1, 16])
def test_batches_are_steps_of_the_replay_with_blocks_for_every_token(block_size: int) -> None:
    found = batches(block_size)
    assert len(found) == 6
    assert [batch.step for batch in found] == sorted({batch.step for batch in found})
    for batch in found:
        assert len(batch.tables) == len(batch.lengths) == batch.load.sequences > 0
        for table, length in zip(batch.tables, batch.lengths, strict=True):
            assert len(table) == -(-length // block_size)
            assert len(set(table.tolist())) == len(table)
            assert 0 <= table.min() <= table.max() < 4096 // block_size
        newest = [int(table[-1]) * block_size + (length - 1) % block_size
                  for table, length in zip(batch.tables, batch.lengths, strict=True)]  # fmt: skip
        assert len(set(newest)) == len(newest)  # no two sequences write the same slot


def test_a_load_counts_tokens_and_entries() -> None:
    batch = LiveBatch(3, (np.array([4, 2], np.int32), np.array([9], np.int32)), (20, 7))
    assert batch.load == Load(sequences=2, context_tokens=27, table_entries=3)


def test_block_size_changes_no_batch_where_nothing_is_short_of_room() -> None:
    lengths = [
        [batch.lengths for batch in decode_batches(
            synthetic("churn"), TINY, SchedulerConfig(), block_size=size, pool_tokens=1 << 16, count=4
        )]
        for size in (4, 16)
    ]  # fmt: skip
    assert lengths[0] == lengths[1]


def test_a_trace_that_fits_in_nowhere_has_no_batch() -> None:
    with pytest.raises(ConfigError, match="no step of the replay decodes on 16 slots"):
        decode_batches(synthetic("handbook"), TINY, SchedulerConfig(), block_size=16, pool_tokens=16, count=1)


def test_a_replay_shorter_than_a_stride_gives_its_first_decode() -> None:
    """A step of 5 prompt tokens, then three of one token each: lengths 6, 7 and 8."""
    rows = [Row(timestamp=0, input_length=5, output_length=3)]
    trace = trace_of(rows, TraceSource("invented", "one"), block_size=0)
    (batch,) = decode_batches(trace, TINY, SchedulerConfig(), block_size=4, pool_tokens=64, count=8)
    assert (batch.lengths, [len(table) for table in batch.tables]) == ((6,), [2])


class FakeBench:
    """Takes what it is told, and remembers what it was given."""

    def __init__(self, took: DecodeTime) -> None:
        self.took = took
        self.given: list[tuple[int, int, int]] = []

    def decode_us(self, tables: Sequence[Int32Array], lengths: Sequence[int], block_size: int) -> DecodeTime:
        self.given.append((len(tables), sum(lengths), block_size))
        return self.took


def test_a_measured_step_is_scaled_as_the_model_is() -> None:
    """32 layers of 100 + 50 us, 8 heads of 10, an upload of 20. The model for 2 sequences of 27 tokens in 3
    entries at block 16: 32 * (40 + 12 + 54 + 500 + 40) + 8 * (100 + 10) + 4 + 2 + 0.03."""
    batch = LiveBatch(3, (np.array([4, 2], np.int32), np.array([9], np.int32)), (20, 7))
    bench = FakeBench(DecodeTime(attention_us=100, rest_us=50, head_us=10, upload_us=20))
    told: list[None] = []
    (step,) = live_steps(calibration(), bench, [batch], 16, lambda: told.append(None))
    modelled = 32 * 646 + 8 * 110 + 6.03
    assert step.measured_us == pytest.approx(32 * 150 + 80 + 20)
    assert step.modelled_us == pytest.approx(modelled)
    assert modelled_step_us(calibration(), 16, batch.load) == pytest.approx(modelled)
    assert step.disagreement == pytest.approx((modelled - 4900) / 4900)
    assert bench.given == [(2, 27, 16)] * 3
    assert len(told) == 1
