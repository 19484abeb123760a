"""A pool that this machine cannot hold is refused before its arrays are made."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from kvsuite.cache.layout import model_layout
from kvsuite.engine.config import EngineConfig
from kvsuite.engine.reference import ReferenceEngine
from kvsuite.errors import ConfigError
from kvsuite.replay.compiled import memory
from kvsuite.replay.compiled.memory import available_bytes, refuse_beyond_memory
from kvsuite.replay.compiled.replay import compiled_replay, open_compiled
from kvsuite.replay.compiled.requests import requests_of
from kvsuite.replay.compiled.state import pool_bytes
from kvsuite.replay.scheduler import SchedulerConfig
from kvsuite.trace.options import TraceOptions, open_trace

if TYPE_CHECKING:
    from pathlib import Path


def machine(root: Path, available_kb: int | None, most: str = "", used: str = "") -> Path:
    for name, text in {
        "proc/meminfo": "" if available_kb is None else f"MemTotal: 9 kB\nMemAvailable: {available_kb} kB\n",
        "sys/fs/cgroup/memory.max": most,
        "sys/fs/cgroup/memory.current": used,
    }.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text, encoding="utf-8")
    return root


@pytest.mark.parametrize(
    ("available_kb", "most", "used", "expected"),
    [
        (4, "", "", 4096),
        (4, "max\n", "1000\n", 4096),
        (4, "3000\n", "1000\n", 2000),
        (1, "3000\n", "1000\n", 1024),
        (None, "500\n", "900\n", 0),
        (None, "", "", None),
    ],
)
def test_the_smaller_of_machine_and_container(
    tmp_path: Path, available_kb: int | None, most: str, used: str, expected: int | None
) -> None:
    assert available_bytes(machine(tmp_path, available_kb, most, used)) == expected


def test_idle_pages_of_files_are_free_to_a_container(tmp_path: Path) -> None:
    """Of 3,000 bytes 2,500 are used, and 700 of those are a file that was read once."""
    root = machine(tmp_path, 4, "3000\n", "2500\n")
    (root / "sys/fs/cgroup/memory.stat").write_text("anon 1700\ninactive_file 700\n", encoding="utf-8")
    assert available_bytes(root) == 3000 - (2500 - 700)


def test_what_does_not_fit_is_refused_and_what_just_fits_is_not(tmp_path: Path) -> None:
    root = machine(tmp_path, 4)
    refuse_beyond_memory(7, 4096, root)
    with pytest.raises(
        ConfigError, match=r"a pool of 7 blocks takes 0\.0 GiB to replay, and 0\.0 GiB of this"
    ):
        refuse_beyond_memory(7, 4097, root)


@pytest.mark.parametrize("prefix_cache", [True, False])
def test_the_bytes_are_those_of_the_arrays(prefix_cache: bool) -> None:
    """Two pools differ in the arrays that grow with the blocks alone, tables apart, which stay as wide."""
    trace = open_trace("boundary", TraceOptions())
    requests = requests_of(trace, 50_000)
    sizes = []
    for num_blocks in (3000, 6000):
        config = EngineConfig(
            layout=model_layout("tiny"), block_size=16, num_blocks=num_blocks, prefix_cache=prefix_cache
        )
        state = open_compiled(requests, ReferenceEngine(config).spec, SchedulerConfig())
        arrays = (getattr(state, name) for name in state._fields if name != "table")
        sizes.append(sum(array.nbytes for array in arrays if isinstance(array, np.ndarray)))
    expected = [pool_bytes(num_blocks, prefix_cache=prefix_cache) for num_blocks in (3000, 6000)]
    assert sizes[1] - sizes[0] == expected[1] - expected[0]


def test_a_replay_of_such_a_pool_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """2 billion blocks of 4 + 4 fields, a map and a ring of 2^32 places: more than 100 GiB."""
    config = EngineConfig(layout=model_layout("tiny"), block_size=16, num_blocks=2 * 10**9)
    monkeypatch.setattr(memory, "available_bytes", lambda _: 100 * 2**30)
    with pytest.raises(
        ConfigError, match=r"a pool of 2000000000 blocks takes [0-9,.]+ GiB to replay, and 100"
    ):
        compiled_replay(open_trace("boundary", TraceOptions()), config)
