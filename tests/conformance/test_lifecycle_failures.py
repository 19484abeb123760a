"""A drawn lifecycle that fails ends with a trace file and a command, and the command shows the same fault."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cases.conformance.test_lifecycles import test_any_lifecycle_keeps_every_law as law
from kvsuite.cli.main import main
from kvsuite.engine import registry
from kvsuite.engine.reference import ReferenceEngine
from kvsuite.errors import EngineError
from kvsuite.plugin.replays import EngineOpener

if TYPE_CHECKING:
    from kvsuite.trace.model import RequestId
    from kvsuite.trace.tokens import TokenRun

ROOT = Path(__file__).parents[2]
CASE = "cases/conformance/test_lifecycles.py"


@pytest.mark.parametrize("fault", ["stale-key", "hits-promised-twice"])
def test_the_smallest_lifecycle_is_printed_and_replays(fault: str, tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    environment.pop("PYTEST_XDIST_WORKER", None)
    words = [sys.executable, "-m", "pytest", CASE, f"--engine=mutant:{fault}", "-q", "--tb=short"]
    ran = subprocess.run(
        [*words, "-p", "no:cacheprovider", "-p", "no:xdist"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ran.returncode == 1, ran.stdout
    said = [line.removeprefix("E   ") for line in ran.stdout.splitlines() if line.startswith("E   ")]
    at = next(number for number, line in enumerate(said) if "to be saved as lifecycle.jsonl" in line)
    rows = [line for line in said[at + 1 :] if line.startswith("{")]
    assert 2 <= len(rows) <= 6, "a header and a few requests"
    violation = next(line for line in said[:at] if " in pool " in line).rpartition("Violation: ")[2]
    invariant = violation.partition(" ")[0]
    (tmp_path / "lifecycle.jsonl").write_text("".join(f"{row}\n" for row in rows))
    command = next(line for line in said if line.startswith("replay it: ")).removeprefix("replay it: ")
    program, *arguments = shlex.split(command)
    assert program == "kvsuite"
    run_main = "from kvsuite.cli.main import main; main()"
    again = subprocess.run(
        [sys.executable, "-c", run_main, *arguments],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert again.returncode == 1, again.stdout + again.stderr
    assert f"VIOLATED {invariant} " in again.stdout


class CrashesAtTheFifthToken(ReferenceEngine):
    """Raises when a sequence grows to five tokens or more."""

    def extend(self, request_id: RequestId, tokens: TokenRun, *, lookahead_tokens: int = 0) -> bool:
        if tokens.stop >= 5:
            raise KeyError(f"no fifth token for {request_id}")
        return super().extend(request_id, tokens, lookahead_tokens=lookahead_tokens)


def test_a_crash_comes_with_the_smallest_lifecycle_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(registry._BUILT_IN, "crashing", f"{__name__}:CrashesAtTheFifthToken")
    with pytest.raises(EngineError) as raised:
        law(EngineOpener("crashing"))
    first, *said = str(raised.value).splitlines()
    assert "no fifth token for r0" in first
    rows = [line for line in said if line.startswith("{")]
    assert len(rows) == 2, "a header and the only request it takes"
    (tmp_path / "lifecycle.jsonl").write_text("".join(f"{row}\n" for row in rows))
    (command,) = (line.removeprefix("replay it: ") for line in said if line.startswith("replay it: "))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", shlex.split(command))
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code not in {0, None}
    assert "no fifth token for r0" in capsys.readouterr().err
