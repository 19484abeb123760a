from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

TRACES = "KVSUITE_TRACES"


@pytest.fixture
def put(tmp_path: Path) -> Callable[..., Path]:
    """Write bytes or text to a file and return its path."""

    def write(content: bytes | str, name: str = "trace.txt") -> Path:
        path = tmp_path / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return write


@pytest.fixture
def put_rows(put: Callable[..., Path]) -> Callable[..., Path]:
    """Write JSON lines: a canonical file where a header is given (``{}`` for the least one)."""

    def write(
        *rows: Mapping[str, Any], header: Mapping[str, Any] | None = None, name: str = "trace.jsonl"
    ) -> Path:
        least = {"schema": "kvsuite.trace", "version": 1}
        lines = [*rows] if header is None else [{**least, **header}, *rows]
        return put("".join(json.dumps(line) + "\n" for line in lines), name)

    return write


@pytest.fixture
def real_trace() -> Callable[[str], Path]:
    """Return the path of a public trace below ``$KVSUITE_TRACES``, or skip."""

    def find(relative: str) -> Path:
        root = os.environ.get(TRACES)
        if root is None:
            pytest.skip(f"{TRACES} does not name a folder of public traces")
        path = Path(root) / relative
        if not path.exists():
            pytest.skip(f"{relative} is not in the folder that {TRACES} names")
        return path

    return find
