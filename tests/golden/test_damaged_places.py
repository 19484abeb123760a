"""Goldens folders that are damaged or closed: told at once, and nothing passes for want of reading."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from kvsuite.errors import GoldenError
from kvsuite.golden.files import check_root
from kvsuite.golden.judge import Verdict

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from kvsuite.golden.codec import Observed
    from kvsuite.golden.store import GoldenStore


@pytest.mark.parametrize("text", ["ffffffff\n", "", "../acme\n", "\ud800"])
def test_a_damaged_baseline_is_told_though_the_golden_itself_is_there(
    text: str, store: GoldenStore, observe: Callable[..., Observed]
) -> None:
    store.write(observe())
    assert store.judge(observe()).verdict is Verdict.MATCH
    baseline = store.root / "acme/BASELINE"
    baseline.write_bytes(text.encode("utf-8", "surrogatepass"))
    with pytest.raises(GoldenError, match="acme/BASELINE"):
        store.judge(observe())
    assert [str(baseline) in problem for problem in store.damaged_baselines()] == [True]
    assert store.damaged_baselines("other") == ()


def test_a_baseline_of_another_engine_is_none(store: GoldenStore, observe: Callable[..., Observed]) -> None:
    path = store.write(observe())
    other = store.root / "other"
    path.parent.parent.rename(other)
    store.write(observe())
    (store.root / "acme/BASELINE").write_text(f"../other/{path.parent.name}\n")
    with pytest.raises(GoldenError, match=r"names '\.\./other/"):
        store.judge(observe(version="2.0"))


def test_a_file_is_no_goldens_folder(tmp_path: Path) -> None:
    (tmp_path / "goldens").write_text("")
    with pytest.raises(GoldenError, match="goldens is no folder"):
        check_root(tmp_path / "goldens")
    check_root(tmp_path)
    check_root(tmp_path / "not yet")


CLOSED = """
import ctypes, sys
from pathlib import Path
from kvsuite.errors import GoldenError
from kvsuite.golden.files import folders, goldens_in, is_there
header, sets = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
libc = ctypes.CDLL(None)
assert libc.capget(header, sets) == 0
sets[0] &= ~0b110  # CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH, by which root passes over permissions
assert libc.capset(header, sets) == 0
for look in (folders, goldens_in, lambda home: is_there(home / "BASELINE")):
    try:
        print("nothing there", look(Path(sys.argv[1])))
    except GoldenError as error:
        print(error)
"""


def test_a_closed_folder_is_not_an_empty_one(store: GoldenStore, observe: Callable[..., Observed]) -> None:
    """Without permission a folder must not look as if it held no goldens."""
    store.write(observe())
    store.root.chmod(0o000)
    done = subprocess.run(
        [sys.executable, "-B", "-c", CLOSED, str(store.root)], capture_output=True, text=True, check=False
    )
    store.root.chmod(0o755)
    assert done.stderr == ""
    assert [line.startswith(f"cannot read {store.root}") for line in done.stdout.splitlines()] == [True] * 3
