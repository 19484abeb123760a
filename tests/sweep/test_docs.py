"""The program printed in docs/sweep.md, run as it stands there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "sweep.md").read_text(encoding="utf-8")


def test_the_program_of_the_page_runs(tmp_path: Path) -> None:
    (program,) = re.findall(r"^## From Python\n\n```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    script = tmp_path / "sweep.py"
    script.write_text(f"import sys\nsys.path.insert(0, {str(ROOT)!r})\n{program}", encoding="utf-8")
    done = subprocess.run([sys.executable, script], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    options = ["block 8", "block 16", "contiguous-max", "contiguous-pow2", "contiguous-exact"]
    lines = done.stdout.splitlines()
    assert len(lines) == 10
    assert all(line.startswith(option) for line, option in zip(lines, options * 2, strict=True))
    assert len(list((tmp_path / "cells").iterdir())) == len([x for x in lines if x.endswith(" None")])
