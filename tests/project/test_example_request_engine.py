"""The server printed in docs/testing-your-engine.md is found by its entry point, sound, and judged."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kvsuite.cache.layout import model_layout
from kvsuite.engine.config import EngineConfig
from kvsuite.engine.registry import open_request_engine
from kvsuite.replay.batch import Ending
from kvsuite.replay.requests.driver import replay_requests
from kvsuite.trace.synthetic import synthetic

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kvsuite.replay.requests.driver import RequestReplay

ROOT = Path(__file__).resolve().parents[2]
DOCUMENT = (ROOT / "docs" / "testing-your-engine.md").read_text(encoding="utf-8")
(SERVER,) = re.findall(r"^```python3\n(.*?)^```$", DOCUMENT, re.MULTILINE | re.DOTALL)


@pytest.fixture
def play(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., RequestReplay]]:
    """Install the server, changed where told, and take a workload through it."""
    metadata = tmp_path / "acme_server-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-server\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[kvsuite.engines]\nacme-server = acme_server:AcmeServer\n")
    monkeypatch.syspath_prepend(tmp_path)

    def played(workload: str, num_blocks: int, sound: str = "", broken: str = "") -> RequestReplay:
        assert sound in SERVER
        (tmp_path / "acme_server.py").write_text(SERVER.replace(sound, broken) if sound else SERVER)
        importlib.invalidate_caches()
        config = EngineConfig(layout=model_layout("tiny"), block_size=16, num_blocks=num_blocks)
        return replay_requests(synthetic(workload), open_request_engine("acme-server", config))

    yield played
    sys.modules.pop("acme_server", None)


@pytest.mark.parametrize(("workload", "num_blocks"), [("boundary", 192), ("churn", 512), ("thrash", 256)])
def test_the_server_keeps_every_law(
    play: Callable[..., RequestReplay], workload: str, num_blocks: int
) -> None:
    done = play(workload, num_blocks)
    assert done.violations == ()
    assert {law.invariant for law in done.not_judged} == {"content", "closure"}
    assert {outcome.ending for outcome in done.outcomes} <= {Ending.FINISHED, Ending.CANCELLED}
    assert done.timeline.pools[0].peak("live_blocks") <= num_blocks


def test_the_server_refuses_what_cannot_fit(play: Callable[..., RequestReplay]) -> None:
    done = play("long-context", 256)
    assert done.violations == ()
    assert len(done.refused) > 0
    assert {outcome.ending for outcome in done.outcomes} == {Ending.FINISHED, Ending.REJECTED}


@pytest.mark.parametrize(
    ("sound", "broken", "law"),
    [
        ("self.generated[r] - 1", "self.generated[r] + self.size", "used"),
        ("used_blocks=used", "used_blocks=used + 1", "drain"),
        ("pool_bytes=self.pool.pool_bytes", "pool_bytes=self.pool.num_blocks", "closure"),
        ("== self.lengths[request_id][1]", "== self.lengths[request_id][1] // 2", "endings"),
        ("if needed > self.pool.num_blocks", "if needed > 4", "progress"),
    ],
    ids=["use", "drain", "bytes", "answers", "refusals"],
)
def test_a_fault_in_it_is_named(
    play: Callable[..., RequestReplay], sound: str, broken: str, law: str
) -> None:
    done = play("boundary", 192, sound, broken)
    assert law in {violation.invariant for violation in done.violations}
