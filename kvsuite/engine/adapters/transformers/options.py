"""What of a configuration the engine takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvsuite.engine.adapters.transformers.opening import TRASH_BLOCKS
from kvsuite.errors import ConfigError

if TYPE_CHECKING:
    from kvsuite.engine.config import EngineConfig

_ENGINE = "engine 'transformers'"
_SAFETY_MARGIN_PERCENT = 15
"""Default of `FIFOScheduler` since 5.3; 20 before, where nothing that is driven here reads it."""


@dataclass(frozen=True, slots=True)
class Options:
    """The engine's own view of a configuration."""

    usable_blocks: int
    prefix_cache: bool
    window_tokens: int | None
    safety_margin_percent: int

    @classmethod
    def of(cls, config: EngineConfig) -> Options:
        """Return the options of a configuration.

        **Raises:** `ConfigError` for an unknown option, one out of range, or a pool without a usable block.
        """
        options = dict(config.options)
        window = options.pop("window_tokens", None)
        margin = options.pop("safety_margin_percent", _SAFETY_MARGIN_PERCENT)
        if options:
            raise ConfigError(
                f"{_ENGINE}: unknown option {min(options)!r}, expected window_tokens or safety_margin_percent"
            )
        if window is not None and (not _whole(window) or int(window) < 2):
            raise ConfigError(f"{_ENGINE}: window_tokens is {window!r}, expected 2 tokens or more")
        if not _whole(margin) or not 0 <= int(margin) <= 100:
            raise ConfigError(f"{_ENGINE}: safety_margin_percent is {margin!r}, expected 0 to 100")
        usable = config.num_blocks - TRASH_BLOCKS
        if usable < 1:
            raise ConfigError(
                f"{_ENGINE}: of {config.num_blocks} blocks {TRASH_BLOCKS} are for padding, so that none is "
                "left: give a larger pool"
            )
        return cls(
            usable_blocks=usable,
            prefix_cache=config.prefix_cache and window is None,
            window_tokens=None if window is None else int(window),
            safety_margin_percent=int(margin),
        )


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
