"""A sweep: each block size and each contiguous control on each trace, on one pool in bytes or several.

What comes out is the memory half of a decision. Latency is not measured here, so no option wins.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kvsuite.errors import ConfigError
from kvsuite.record.schema import SweepLine, SweepRow
from kvsuite.replay.batch import scheduler_recipe
from kvsuite.sweep.cells import CONTROL_BLOCK_SIZE, CONTROLS, DEFAULT_CONTROLS, REFERENCE, Cell, has_numba

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from kvsuite.cache.layout import Layout
    from kvsuite.replay.scheduler import SchedulerConfig
    from kvsuite.sweep.cells import Core, Scalar
    from kvsuite.sweep.traces import TraceRef

DEFAULT_SIZES = tuple(2**power for power in range(9))
_BINARY_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepPlan:
    """Engines at block sizes, and the controls, on every trace and pool.

    **Raises:** `ConfigError` for a control that is none or stands among the engines, for a trace, pool,
    engine or size that comes twice, and where the compiled core is demanded and numba is not there.
    """

    traces: tuple[TraceRef, ...]
    layout: Layout
    pools_bytes: tuple[int, ...]
    scheduler: SchedulerConfig
    engines: tuple[str, ...] = (REFERENCE,)
    sizes: tuple[int, ...] = DEFAULT_SIZES
    controls: tuple[str, ...] = DEFAULT_CONTROLS
    prefix_cache: bool = True
    watermark_blocks: int = 0
    max_model_tokens: int | None = None
    """Most tokens a request without a cap may come to; the longest of the trace where none is given."""
    engine_options: Mapping[str, Scalar] = field(default_factory=dict)
    """The engines' own, see `EngineConfig.options`; a control has none."""
    core: Core = "auto"

    def __post_init__(self) -> None:
        unknown = [control for control in self.controls if control not in CONTROLS]
        if unknown:
            raise ConfigError(
                f"{unknown[0]!r} is no contiguous control: expected one of {', '.join(CONTROLS)}"
            )
        misplaced = [engine for engine in self.engines if engine in CONTROLS]
        if misplaced:
            raise ConfigError(f"{misplaced[0]} is a contiguous control: name it among the controls")
        given: dict[str, tuple[object, ...]] = {
            "trace": tuple(trace.name for trace in self.traces),
            "pool": tuple(map(exact_bytes, self.pools_bytes)),
            "engine": (*self.engines, *self.controls),
            "size": self.sizes,
        }
        for what, values in given.items():
            twice = [value for value in values if values.count(value) > 1]
            if twice:
                raise ConfigError(f"{what} {twice[0]} is given twice: give each once")
        if self.core == "compiled" and REFERENCE in self.engines and not has_numba():
            raise ConfigError(
                "the compiled core needs numba, which is not installed: install kvsuite[fast], or leave "
                "out --core compiled"
            )

    def cells(self) -> tuple[Cell, ...]:
        """Return every cell: trace by trace, pool by pool, engine by engine, then the controls."""
        return tuple(
            self._cell(trace, pool_bytes, engine, size)
            for trace in self.traces
            for pool_bytes in self.pools_bytes
            for engine, size in self._options()
        )

    def lines(self, rows: tuple[SweepRow, ...]) -> Iterator[SweepLine]:
        """Yield one line of the record a trace and pool; ``rows`` are in the order of `cells`.

        The name of a trace is the ref of its own line.
        """
        recipe = scheduler_recipe(self.scheduler) | {
            "prefix_cache": self.prefix_cache,
            "watermark_blocks": self.watermark_blocks,
        }
        share, left = len(list(self._options())), list(rows)
        for trace in self.traces:
            for pool_bytes in self.pools_bytes:
                here, left = left[:share], left[share:]
                yield SweepLine(
                    trace=trace.name,
                    layout=str(self.layout),
                    pool_bytes=pool_bytes,
                    recipe=recipe,
                    rows=here,
                )

    def _options(self) -> Iterator[tuple[str, int]]:
        yield from ((engine, size) for engine in self.engines for size in self.sizes)
        yield from ((control, CONTROL_BLOCK_SIZE) for control in self.controls)

    def _cell(self, trace: TraceRef, pool_bytes: int, engine: str, block_size: int) -> Cell:
        control = engine in CONTROLS
        options = () if control else tuple(sorted(self.engine_options.items()))
        words = [] if control or len(self.engines) == 1 else [engine]
        words.append(engine if control else f"block {block_size}")
        words += [f"in {exact_bytes(pool_bytes)}"] if len(self.pools_bytes) > 1 else []
        words += [f"on {trace.name}"] if len(self.traces) > 1 else []
        return Cell(
            trace=trace,
            engine=engine,
            block_size=block_size,
            pool_bytes=pool_bytes,
            layout=self.layout,
            scheduler=self.scheduler,
            prefix_cache=self.prefix_cache,
            watermark_blocks=self.watermark_blocks,
            max_model_tokens=self.max_model_tokens,
            options=options,
            core=self.core,
            name=" ".join(words),
        )


def exact_bytes(count: int) -> str:
    """Return a byte count in the largest binary unit that it is a whole number of.

    >>> exact_bytes(20 * 2**30), exact_bytes(1536), exact_bytes(1023)
    ('20GiB', '1536B', '1023B')
    """
    power = 0
    while power + 1 < len(_BINARY_UNITS) and count and count % 1024 == 0:
        count, power = count // 1024, power + 1
    return f"{count}{_BINARY_UNITS[power]}"
