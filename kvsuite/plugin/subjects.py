"""The engines under test, each opened once by default to learn who it is and what it claims."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kvsuite.engine.contract import EngineSpec

_BLOCK_SIZES = (16, 32)
"""Tried in this order: some engines have one size."""
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
            self._specs[name] = _opened(name)
        return self._specs[name]

    def unavailable(self, names: Iterable[str]) -> dict[str, str]:
        """Return the engines whose environment cannot be had now, with the reason.

        **Raises:** `EngineError` or `ConfigError`, where one cannot be opened.
        """
        from kvsuite.errors import EnvironmentUnavailable

        found: dict[str, str] = {}
        for name in names:
            try:
                self.spec(name)
            except EnvironmentUnavailable as error:
                found[name] = f"environment unavailable: {error}"
        return found

    def specs(self, names: Iterable[str]) -> tuple[EngineSpec, ...]:
        """Return the specs of several engines."""
        return tuple(self.spec(name) for name in names)


def _opened(name: str) -> EngineSpec:
    from kvsuite.cache.layout import model_layout
    from kvsuite.engine.config import EngineConfig
    from kvsuite.engine.registry import open_any_engine
    from kvsuite.errors import ConfigError
    from kvsuite.trace.synthetic import synthetic

    refused: ConfigError | None = None
    for block_size in _BLOCK_SIZES:
        config = EngineConfig(
            layout=model_layout("tiny"),
            block_size=block_size,
            num_blocks=_NUM_BLOCKS,
            max_model_tokens=block_size * _NUM_BLOCKS,
            trace=synthetic("boundary"),
        )
        try:
            return open_any_engine(name, config).spec
        except ConfigError as error:
            refused = refused or error
    assert refused is not None
    raise refused


SUBJECTS = pytest.StashKey[Subjects]()


def subjects_of(config: pytest.Config) -> Subjects:
    """Return the engines of this session."""
    if SUBJECTS not in config.stash:
        config.stash[SUBJECTS] = Subjects()
    return config.stash[SUBJECTS]
