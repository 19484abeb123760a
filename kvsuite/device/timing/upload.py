"""A step's block tables on their way to the device: rows filled on the host, then one copy."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

import torch

from kvsuite.device.spans import timed
from kvsuite.device.timing.rounds import Load, Task, What

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import numpy as np

    from kvsuite.device.spans import Spans

UPLOAD = "upload"


class TableUpload:
    """A table int32 [sequences, width] on the host, pinned for a card, and its place on the device."""

    def __init__(self, sequences: int, width: int, device: str) -> None:
        self._host = torch.zeros(sequences, width, dtype=torch.int32, pin_memory=device != "cpu")
        self._rows = self._host.numpy()
        self._device = torch.zeros(sequences, width, dtype=torch.int32, device=device)

    def __call__(
        self, tables: Sequence[array[int] | np.ndarray[tuple[int], np.dtype[np.int32]]]
    ) -> torch.Tensor:
        """Copy a batch's tables, one a sequence; what the device's holds beyond each is of no meaning."""
        for row, blocks in zip(self._rows, tables, strict=False):
            row[: len(blocks)] = blocks
        self._device.copy_(self._host, non_blocking=True)
        return self._device


def upload_tasks(tables: Iterable[tuple[int, int]], device: str, spans: Spans) -> Iterator[Task]:
    """Yield a task for each (sequences, entries each)."""
    for sequences, entries in tables:
        upload = TableUpload(sequences, entries, device)
        rows = [array("i", range(entries)) for _ in range(sequences)]
        load = Load(sequences=sequences, table_entries=sequences * entries)
        yield _task(upload, rows, load, spans)


def _task(upload: TableUpload, rows: list[array[int]], load: Load, spans: Spans) -> Task:
    return Task((What(part=UPLOAD, load=load),), lambda: (timed(lambda: upload(rows), spans),))
