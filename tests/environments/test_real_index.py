"""With the real package index: what the recipes promise. Runs where KVSUITE_REQUIRE_ENVIRONMENTS=1."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

import pytest

from kvsuite.engine.environments import ensure, released

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.skipif(
    os.environ.get("KVSUITE_REQUIRE_ENVIRONMENTS") != "1",
    reason="downloads from the package index; set KVSUITE_REQUIRE_ENVIRONMENTS=1",
)
_MODULES = (
    *("v1/core/block_pool.py", "v1/core/kv_cache_manager.py", "v1/core/kv_cache_coordinator.py"),
    *("v1/core/single_type_kv_cache_manager.py", "v1/core/kv_cache_utils.py", "v1/kv_cache_interface.py"),
    *("v1/request.py", "utils/hashing.py", "_version.py"),
)


def test_the_source_distribution_of_vllm_has_what_its_cache_needs(cache: Path) -> None:
    made = ensure("vllm", "0.23.0")

    (package,) = made.folder.glob("lib/python*/site-packages/vllm")
    assert [name for name in _MODULES if not (package / name).is_file()] == []
    assert {path.suffix for path in package.rglob("*") if path.is_file()} == {".py"}
    code = "import runpy, sys; print(runpy.run_path(sys.argv[1])['__version__'])"
    version = subprocess.check_output([made.python, "-c", code, package / "_version.py"], text=True)
    assert version == "0.23.0\n"
    no_torch = subprocess.run(
        [made.python, "-c", "import torch"], capture_output=True, text=True, check=False
    )
    assert "No module named 'torch'" in no_torch.stderr


@pytest.mark.parametrize(
    ("name", "known"), [("vllm", "0.33.0"), ("transformers", "5.18.0"), ("sglang", "0.5.23")]
)
def test_the_index_lists_known_versions(cache: Path, name: str, known: str) -> None:
    assert known in released(name)
