"""Cells over a small trace, and engines that write down each opening and can kill the process they are in."""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from kvsuite.cache.layout import model_layout
from kvsuite.replay.scheduler import SchedulerConfig
from kvsuite.sweep.plan import SweepPlan
from kvsuite.sweep.traces import TraceRef
from kvsuite.trace.options import TraceOptions

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from kvsuite.sweep.cells import Cell

SIZES = (4, 8, 16, 32)
CULPRIT = 16
"""The block size at which an engine of `ENGINES` does what it is called after."""
ENGINES = '''
import os, signal, uuid
from pathlib import Path

from kvsuite.engine.reference import ReferenceEngine


def opened(config):
    """Write down this opening and return how many there were before at this block size."""
    folder = Path(os.environ["KVSUITE_TEST_MARKS"])
    before = len(list(folder.glob(f"{config.block_size}-*")))
    (folder / f"{config.block_size}-{uuid.uuid4().hex}").touch()
    return before


def steady(config):
    opened(config)
    return ReferenceEngine(config)


def dies_once(config):
    if opened(config) == 0 and config.block_size == 16:
        os.kill(os.getpid(), signal.SIGKILL)
    return ReferenceEngine(config)


def dies(config):
    opened(config)
    if config.block_size == 16:
        os.kill(os.getpid(), signal.SIGKILL)
    return ReferenceEngine(config)


class Raises(ReferenceEngine):
    name = "probe-raises"

    def __init__(self, config):
        opened(config)
        super().__init__(config)
        self.faulty = config.block_size == 16

    def admit(self, *args, **kwargs):
        if self.faulty:
            raise LookupError("the probe has lost its way")
        return super().admit(*args, **kwargs)
'''
MODULE = "probe_engines"
_POINTS = """[kvsuite.engines]
probe-steady = probe_engines:steady
probe-dies-once = probe_engines:dies_once
probe-dies = probe_engines:dies
probe-raises = probe_engines:Raises
"""


@dataclass(frozen=True)
class Probes:
    """Engines of another distribution, which processes that are spawned find too."""

    marks: Path

    def openings(self) -> dict[int, int]:
        """Return how often an engine was opened, by block size."""
        return dict(Counter(int(path.name.partition("-")[0]) for path in self.marks.iterdir()))


@pytest.fixture
def probes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Probes]:
    site, marks = tmp_path / "site", tmp_path / "marks"
    info = site / "probes-1.0.dist-info"
    info.mkdir(parents=True)
    marks.mkdir()
    (site / f"{MODULE}.py").write_text(ENGINES, encoding="utf-8")
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: probes\nVersion: 1.0\n", encoding="utf-8")
    (info / "entry_points.txt").write_text(_POINTS, encoding="utf-8")
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.setenv("KVSUITE_TEST_MARKS", str(marks))
    sys.modules.pop(MODULE, None)
    yield Probes(marks)
    sys.modules.pop(MODULE, None)


@pytest.fixture(scope="session")
def boundary() -> TraceRef:
    return TraceRef.read("boundary", TraceOptions(limit=20))


def cells_of(
    trace: TraceRef, engine: str = "reference", sizes: tuple[int, ...] = SIZES, **more: object
) -> tuple[Cell, ...]:
    """Return ``engine`` at each size and one control, on 256 KiB of a tiny layout."""
    plan = SweepPlan(
        traces=(trace,),
        layout=model_layout("tiny"),
        pools_bytes=(2**18,),
        scheduler=SchedulerConfig(max_sequences=8, max_step_tokens=512),
        engines=(engine,),
        sizes=sizes,
        **{"controls": ("contiguous-exact",), **more},  # type: ignore[arg-type]
    )
    return plan.cells()
