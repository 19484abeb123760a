"""The engines under test, each opened once by default to learn who it is and what it claims."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kvsuite.engine.contract import EngineSpec

_BLOCK_SIZE = 16
_NUM_BLOCKS = 64


class Subjects:
    """Specs of engines as they open by default: their identity, whatever a case opens them with."""

    def __init__(self) -> None:
        self._specs: dict[str, EngineSpec] = {}

    def spec(self, name: str) -> EngineSpec:
        """Return the spec of one engine, opened on a small pool.

        **Raises:** `EngineError` or `ConfigError`, where it cannot be opened.
        """
        if name not in self._specs:
            from kvsuite.cache.layout import model_layout
            from kvsuite.engine.config import EngineConfig
            from kvsuite.engine.registry import open_engine
            from kvsuite.trace.synthetic import synthetic

            config = EngineConfig(
                layout=model_layout("tiny"),
                block_size=_BLOCK_SIZE,
                num_blocks=_NUM_BLOCKS,
                max_model_tokens=_BLOCK_SIZE * _NUM_BLOCKS,
                trace=synthetic("boundary"),
            )
            self._specs[name] = open_engine(name, config).spec
        return self._specs[name]

    def specs(self, names: Iterable[str]) -> tuple[EngineSpec, ...]:
        """Return the specs of several engines."""
        return tuple(self.spec(name) for name in names)


SUBJECTS = pytest.StashKey[Subjects]()


def subjects_of(config: pytest.Config) -> Subjects:
    """Return the engines of this session."""
    if SUBJECTS not in config.stash:
        config.stash[SUBJECTS] = Subjects()
    return config.stash[SUBJECTS]
