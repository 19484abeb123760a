"""Check that a checkout and an installed wheel collect the same cases.

    python .ci/compare_case_ids.py WHEEL_PYTHON     run by the checkout's Python, from the checkout

Exit code 0 when both collect the same ids, and at least one; 1 otherwise.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

_COLLECT = "--collect"
ENGINE = "--engine=reference"
"""One engine on both sides: a checkout's specimens would add cases of their own."""


class _Ids:
    """A plugin that keeps the ids of what was collected."""

    def __init__(self) -> None:
        self.found: list[str] = []

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Take the ids, as the suite names its cases."""
        from kvsuite.plugin.case_id import case_id

        self.found = [case_id(item) for item in session.items]


def collect(out: Path, targets: list[str]) -> int:
    """Collect ``targets`` and write their ids to ``out`` as JSON."""
    ids = _Ids()
    status = pytest.main(["--collect-only", "-q", "-p", "no:cacheprovider", *targets], plugins=[ids])
    out.write_text(json.dumps(ids.found), encoding="utf-8")
    return int(status)


def collected_by(python: str, targets: list[str], folder: Path) -> list[str]:
    """Return the ids that another interpreter collects from ``folder``."""
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch) / "ids.json"
        command = [python, str(Path(__file__).resolve()), _COLLECT, str(out), *targets]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"{python} cannot collect {targets} in {folder}:\n{done.stdout}{done.stderr}")
        ids: list[str] = json.loads(out.read_text(encoding="utf-8"))
    return ids


def main(wheel_python: str) -> int:
    """Collect on both sides and print how they differ."""
    checkout = Path(__file__).resolve().parents[1]
    with tempfile.TemporaryDirectory() as elsewhere:
        ours = collected_by(sys.executable, ["cases", ENGINE], checkout)
        theirs = collected_by(wheel_python, ["--pyargs", "kvsuite.cases", ENGINE], Path(elsewhere))
    for where, only in (("checkout", set(ours) - set(theirs)), ("wheel", set(theirs) - set(ours))):
        for case in sorted(only):
            sys.stdout.write(f"only in the {where}: {case}\n")
    same = bool(ours) and sorted(ours) == sorted(theirs)
    verdict = "the same" if same else "NOT the same"
    sys.stdout.write(f"case ids: {len(ours)} in the checkout, {len(theirs)} in the wheel, {verdict}\n")
    return 0 if same else 1


if __name__ == "__main__":
    if sys.argv[1] == _COLLECT:
        sys.exit(collect(Path(sys.argv[2]), sys.argv[3:]))
    sys.exit(main(sys.argv[1]))
