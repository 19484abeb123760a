from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from kvsuite.device.lock import gpu_lock, lock_path
from kvsuite.errors import DeviceError

if TYPE_CHECKING:
    from pathlib import Path

pytest.importorskip("fcntl", reason="the lock is a POSIX file lock")

TRY = """
import fcntl, sys
with open(sys.argv[1], "a") as handle:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        sys.exit(75)
"""


def another_process_gets(path: Path) -> bool:
    code = subprocess.run([sys.executable, "-c", TRY, str(path)], check=False).returncode
    assert code in (0, 75)
    return code == 0


def test_one_process_holds_a_card_at_a_time(tmp_path: Path) -> None:
    path = lock_path("GPU-1", tmp_path)
    with gpu_lock("GPU-1", tmp_path):
        assert not another_process_gets(path)
        assert another_process_gets(lock_path("GPU-2", tmp_path))
    assert another_process_gets(path)


def test_an_error_lets_go_of_the_card(tmp_path: Path) -> None:
    with pytest.raises(KeyError), gpu_lock("GPU-1", tmp_path):
        raise KeyError
    assert another_process_gets(lock_path("GPU-1", tmp_path))


def test_a_folder_that_is_missing_is_named(tmp_path: Path) -> None:
    said = r"missing.*the lock of GPU GPU-1 .*set TMPDIR"
    with pytest.raises(DeviceError, match=said), gpu_lock("GPU-1", tmp_path / "missing"):
        pass


def test_an_id_cannot_leave_the_folder(tmp_path: Path) -> None:
    assert lock_path("../../GPU/1", tmp_path).parent == tmp_path
