"""Real decode steps of a trace's own batches, held against the model of a step.

The batches are those of a replay of the reference engine: the sequences that decode in a step, with their
tables. What is timed is attention, the rest of a layer, the head and the upload of the tables; the manager
does not run, and the model is asked without it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from kvsuite.device.timing.rounds import Load
from kvsuite.engine.config import EngineConfig
from kvsuite.engine.registry import open_engine
from kvsuite.errors import ConfigError
from kvsuite.replay.frame import Frame
from kvsuite.replay.steps import Stepper
from kvsuite.sweep.lengths import longest_declared_tokens

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from kvsuite.cache.layout import Layout
    from kvsuite.device.timing.rounds import DecodeTime
    from kvsuite.engine.snapshot import Int32Array
    from kvsuite.replay.batch import SchedulerConfig
    from kvsuite.sweep.calibrate import Calibration
    from kvsuite.trace.model import Trace

STRIDE_STEPS = 16
"""Steps of the replay from one batch to the next, so that batches differ."""
ROUNDS = 3
_PARTS = ("attention", "rest", "head", "upload")


class TimesSteps(Protocol):
    """What runs a batch: `kvsuite.device.timing.bench.StepBench`."""

    def decode_us(self, tables: Sequence[Int32Array], lengths: Sequence[int], block_size: int) -> DecodeTime:
        """Time one decode step."""
        ...


@dataclass(frozen=True, slots=True)
class LiveBatch:
    """Sequences that decode in one step of a replay: their tables, and their tokens with the new one."""

    step: int
    tables: tuple[Int32Array, ...]
    lengths: tuple[int, ...]

    @property
    def load(self) -> Load:
        """What decoding it does, the manager apart."""
        entries = sum(len(table) for table in self.tables)
        return Load(sequences=len(self.lengths), context_tokens=sum(self.lengths), table_entries=entries)


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveStep:
    """A batch as it was timed and as the model has it, microseconds of a whole step."""

    block_size: int
    batch: LiveBatch
    measured_us: float
    modelled_us: float

    @property
    def disagreement(self) -> float:
        """``|modelled - measured| / measured``."""
        return abs(self.modelled_us - self.measured_us) / self.measured_us


def decode_batches(
    trace: Trace, layout: Layout, scheduler: SchedulerConfig, *, block_size: int, pool_tokens: int, count: int
) -> list[LiveBatch]:
    """Return ``count`` batches from the beginning of a replay on ``pool_tokens`` slots; fewer if it ends.

    A replay that is over before the first stride gives the first step that decodes.

    **Raises:** `ConfigError` where no step of it decodes.
    """
    engine = open_engine(
        "reference",
        EngineConfig(
            layout=layout,
            block_size=block_size,
            num_blocks=pool_tokens // block_size,
            max_model_tokens=longest_declared_tokens(trace),
            trace=trace,
        ),
    )
    parts = Stepper(trace, engine, scheduler, read_all=True).parts()
    found: list[LiveBatch] = []
    first: LiveBatch | None = None
    frames = 0
    for part in parts:
        if not isinstance(part, Frame):
            continue
        frames += 1
        is_due = frames % STRIDE_STEPS == 0
        batch = _decoding(part) if is_due or first is None else None
        if batch is not None:
            first = first or batch
            if is_due:
                found.append(batch)
        if len(found) == count:
            break
    parts.close()
    if first is None:
        raise ConfigError(
            f"no step of the replay decodes on {pool_tokens:,} slots: give a trace whose requests fit into "
            "what was calibrated"
        )
    return found or [first]


def modelled_step_us(calibration: Calibration, block_size: int, load: Load) -> float:
    """Return the modelled microseconds of a decode step without the manager."""
    factors = calibration.factors
    fits = (calibration.fit(part, block_size if part == "attention" else None) for part in _PARTS)
    return sum(factors[fit.part] * fit.us(load) for fit in fits)


def live_steps(
    calibration: Calibration,
    bench: TimesSteps,
    batches: Sequence[LiveBatch],
    block_size: int,
    told: Callable[[], None] | None = None,
) -> Iterator[LiveStep]:
    """Time each batch and yield it beside the model; ``told`` is called after each."""
    factors = calibration.factors
    for batch in batches:
        taken = [bench.decode_us(batch.tables, batch.lengths, block_size) for _ in range(ROUNDS)]
        steps = [
            factors["attention"] * took.attention_us
            + factors["rest"] * took.rest_us
            + factors["head"] * took.head_us
            + took.upload_us
            for took in taken
        ]
        if told is not None:
            told()
        yield LiveStep(
            block_size=block_size,
            batch=batch,
            measured_us=float(np.median(steps)),
            modelled_us=modelled_step_us(calibration, block_size, batch.load),
        )


def _decoding(frame: Frame) -> LiveBatch | None:
    """Return the sequences of a step that write one token after their prompt; ``None`` where none does."""
    shot = frame.snapshots[0]
    tables = {
        shot.request_ids[row]: shot.table_blocks[begin:end].copy()
        for row, begin, end in zip(
            shot.table_rows.tolist(), shot.table_offsets[:-1], shot.table_offsets[1:], strict=True
        )
    }
    writes = [write for write in frame.writes if write.sequence.decodes and write.stop - write.start == 1]
    if not writes:
        return None
    return LiveBatch(
        frame.step,
        tuple(tables[write.sequence.request_id] for write in writes),
        tuple(write.stop for write in writes),
    )
