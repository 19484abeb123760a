"""Files appear whole; links, pipes and devices stay what they are."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from kvsuite.errors import TraceError
from kvsuite.trace.atomic import write_whole


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_bytes(b"old")
    link.symlink_to(target)
    write_whole(link, b"new")
    assert link.is_symlink()
    assert target.read_bytes() == b"new"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "target"]


def test_a_pipe_is_written_to(tmp_path: Path) -> None:
    pipe, read = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()))
    reader.start()
    write_whole(pipe, b"content")
    reader.join(60)
    assert read == [b"content"]
    assert pipe.is_fifo()


def test_a_device_is_written_to() -> None:
    write_whole(Path("/dev/null"), b"content")
    assert Path("/dev/null").is_char_device()


@pytest.mark.skipif(not Path("/dev/full").is_char_device(), reason="this system has no /dev/full")
def test_a_device_without_room_is_an_error_and_stays() -> None:
    with pytest.raises(TraceError, match="cannot write /dev/full: No space left"):
        write_whole(Path("/dev/full"), b"content")
    assert Path("/dev/full").is_char_device()
