"""Where a CPU build of torch comes from."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsuite.engine.environments.installer import cuda_libraries, read_report
from kvsuite.engine.environments.places import say

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from kvsuite.engine.environments.installer import Pip

CPU_INDEX = "https://download.pytorch.org/whl/cpu"


def torch_options(pip: Pip, folder: Path, requirements: Sequence[str]) -> list[str]:
    """Return the options with which pip installs a CPU build of torch into the environment at ``folder``.

    Empty where pip as it is configured would take one: from a mirror, from files at hand, or because the
    platform has no other. Else the CPU index of PyTorch, in place of the configured one.

    **Raises:** `EnvironmentUnavailable` when pip cannot tell.
    """
    report = folder / "dry-run.json"
    arguments = ["--python", str(folder / "bin" / "python"), "install", "--dry-run", "--progress-bar", "off"]
    pip.run([*arguments, "--report", str(report), *requirements])
    chosen = read_report(report)
    report.unlink()
    if not cuda_libraries(chosen):
        return []
    say(f"{pip.subject}: the configured index has a CUDA build; taking the CPU build from {CPU_INDEX}")
    return ["--index-url", CPU_INDEX]
