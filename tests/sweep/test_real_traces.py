"""Static tail slack of two public traces, at the digits that were published for them."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from kvsuite.sweep.lengths import static_slack_share
from kvsuite.trace.load import load_trace

SIZES = (8, 16, 32, 64, 128, 256, 512)


def real_trace(name: str) -> str:
    folder = os.environ.get("KVSUITE_TRACES")
    if folder is None or not (Path(folder) / name).exists():
        pytest.skip(f"{name} is read from the folder that KVSUITE_TRACES names, and is not there")
    return str(Path(folder) / name)


@pytest.mark.parametrize(
    ("name", "published"),
    [
        (
            "azure/AzureLLMInferenceTrace_conv.csv",
            (".0026", ".0054", ".0112", ".0221", ".0438", ".0802", ".1343"),
        ),
        (
            "mooncake/conversation_trace.jsonl",
            (".0003", ".0006", ".0012", ".0025", ".0051", ".0101", ".0201"),
        ),
    ],
)
def test_static_slack_at_finish_agrees_with_the_published_digits(
    name: str, published: tuple[str, ...]
) -> None:
    trace = load_trace(real_trace(name))
    lengths = trace.prompt_tokens + trace.output_tokens
    assert [f"{static_slack_share(lengths, size):.4f}"[1:] for size in SIZES] == list(published)
    for size in SIZES:
        blocks = sum(-(-length // size) for length in lengths.tolist())
        independent = (blocks * size - int(np.sum(lengths))) / (blocks * size)
        assert static_slack_share(lengths, size) == pytest.approx(independent, abs=1e-12)
