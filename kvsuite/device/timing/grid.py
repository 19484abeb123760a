"""Which calls are timed: enough to tell what a sequence, a token and a table entry cost each."""

from __future__ import annotations

from dataclasses import dataclass, replace

from kvsuite.errors import ConfigError

MIN_ROUNDS = 9


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """What is timed, and how often.

    **Raises:** `ConfigError` for fewer than 9 rounds, or a list that does not tell its costs apart.
    """

    points: tuple[tuple[int, int], ...]
    """Decode attention: (sequences, tokens of context each), the longest buffer last."""
    batches: tuple[int, ...]
    """Sequences of a decode step."""
    chunks: tuple[tuple[int, int], ...]
    """Prefill: (tokens, tokens before them)."""
    tables: tuple[tuple[int, int], ...]
    """Table upload: (sequences, entries each)."""
    rounds: int = MIN_ROUNDS

    def __post_init__(self) -> None:
        if self.rounds < MIN_ROUNDS:
            raise ConfigError(f"{self.rounds} rounds: a median and its quartiles need {MIN_ROUNDS} or more")
        apart = (
            len({sequences for sequences, _ in self.points}) > 1
            and len({context for _, context in self.points}) > 1
            and len(set(self.batches)) > 1
            and len(set(self.chunks)) > 2
            and len(set(self.tables)) > 2
        )
        if not apart:
            raise ConfigError(
                "a grid has to vary sequences and contexts, and to have two batches, three chunks and "
                "three tables at least: else costs cannot be told apart"
            )

    def with_rounds(self, rounds: int) -> Grid:
        """Return the grid with another number of rounds."""
        return replace(self, rounds=rounds)


def default_grid(device: str) -> Grid:
    """Return the grid for ``cpu`` (about a minute for an 8B layer) or ``cuda:N``."""
    return CPU_GRID if device == "cpu" else CUDA_GRID


SMALL_GRID = Grid(
    points=((1, 64), (2, 256), (4, 128)), batches=(1, 4), chunks=((8, 0), (32, 0), (16, 64)),
    tables=((1, 64), (4, 16), (4, 256)),
)  # fmt: skip
"""Seconds on a CPU; says nothing of memory."""
CPU_GRID = Grid(
    points=((1, 1024), (1, 4096), (8, 1024), (64, 256), (32, 1024), (16, 4096)),
    batches=(1, 8, 32, 128),
    chunks=((64, 0), (256, 0), (128, 1024), (256, 2048)),
    tables=((1, 1024), (8, 256), (64, 64), (8, 8192), (64, 2048), (128, 16)),
)
CUDA_GRID = Grid(
    points=((1, 1024), (1, 16384), (8, 2048), (32, 512), (32, 4096), (128, 256), (256, 1024)),
    batches=(1, 8, 32, 64, 128, 256),
    chunks=((256, 0), (2048, 0), (1024, 4096), (2048, 8192)),
    tables=((1, 1024), (8, 256), (64, 64), (64, 8192), (256, 1024), (256, 16)),
    rounds=21,
)
