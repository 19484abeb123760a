"""The decision half of `kvsuite sweep`: step costs in, one verdict an option and a stored decision out."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from kvsuite.cli.output import cells_bar, print_figures, print_line, print_table
from kvsuite.cli.setup import parse_engine_options
from kvsuite.cli.sizes import parse_pool, parse_slo
from kvsuite.cli.sweep_costs import open_costs
from kvsuite.cli.sweep_verdicts import decision_figures, phase_table, verdict_table
from kvsuite.device.select import device_name
from kvsuite.errors import ConfigError
from kvsuite.sweep import measure as measured
from kvsuite.sweep.cells import REFERENCE
from kvsuite.sweep.decision import BLOCK_SIZE, decided
from kvsuite.sweep.lengths import longest_declared_tokens
from kvsuite.sweep.recipe import Recipe, compare, read_decision, write_decision
from kvsuite.sweep.trial import Trials

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from kvsuite.record.schema import DecisionLine
    from kvsuite.sweep.cells import Cell
    from kvsuite.sweep.costs import CostSource
    from kvsuite.sweep.measure import Measurement
    from kvsuite.sweep.plan import SweepPlan
    from kvsuite.sweep.recipe import StoredDecision
    from kvsuite.sweep.slo import Slo

Scalar = int | str | bool

DECISION_NAME = "decision.json"
_NO_COSTS = (
    "--slo asks for a decision, and a decision needs what a step costs on this device: measure it with "
    "`kvsuite calibrate` and give the file as --calibration, or leave out --slo"
)


@dataclass(frozen=True, slots=True)
class Vary:
    """A factor that options differ in instead of block size, and its values."""

    name: str
    values: tuple[Scalar, ...]

    def __str__(self) -> str:
        return f"{self.name}={','.join(map(_text, self.values))}"

    def cells(self, cell: Cell) -> Iterator[tuple[str, Cell]]:
        """Yield one cell a value, each with its name.

        **Raises:** `ConfigError` for a value that the factor cannot have.
        """
        for value in self.values:
            yield f"{self.name}={_text(value)}", _varied(cell, self.name, value)


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionOrder:
    """What `kvsuite sweep --slo` was asked for."""

    slo: Slo
    calibration: Path
    stored: Path | None
    vary: Vary | None
    burst: int = 0
    """Samples that may diverge at once; 0 where none is declared."""

    def stored_decision(self, folder: Path) -> StoredDecision | None:
        """Return the decision to be held against, read before the long work begins.

        **Raises:** `ConfigError` for a file that is no decision, or that the run would write over.
        """
        if self.stored is None:
            return None
        if self.stored.resolve() == (folder / DECISION_NAME).resolve():
            raise ConfigError(
                f"{self.stored} lies in the folder of this run, which writes over it: copy it elsewhere"
            )
        return read_decision(self.stored)

    def check(self, plan: SweepPlan) -> None:
        """Find out before the long work whether the sweep can be decided.

        **Raises:** `ConfigError` for more than one trace or pool, an engine other than the reference, and a
        factor that is varied at more than one block size, and for sizes that the calibration does not have.
        """
        for what, number in (("trace", len(plan.traces)), ("pool", len(plan.pools_bytes))):
            if number != 1:
                raise ConfigError(f"--slo decides on one {what}, and {number} are given: give one at a time")
        if plan.engines != (REFERENCE,):
            raise ConfigError(
                f"--slo decides for the engine {REFERENCE}, with a clock: found {', '.join(plan.engines)}"
            )
        if self.vary is not None and len(plan.sizes) != 1:
            raise ConfigError(
                f"--vary {self.vary} changes one factor at a time: give one block size, such as --sizes 16; "
                f"found {len(plan.sizes)}"
            )
        source = open_costs(self.calibration, plan.layout)
        for size in plan.sizes:
            source.costs(size)

    def decide(self, plan: SweepPlan, stored: StoredDecision | None) -> SweepDecision:
        """Clock every option, judge them, and hold the decision against the stored one."""
        (ref,), source = plan.traces, open_costs(self.calibration, plan.layout)
        trace = ref.open()
        cells = [(cell.option, cell) for cell in plan.cells()]
        if self.vary is not None:
            cells = list(self.vary.cells(cells[0][1]))
        with cells_bar("clocked replays") as progress:
            measurement = measured.measure(
                cells, trace, source, self.slo, measured.clock_cell, progress=progress
            )
        done = decided(
            measurement,
            self._recipe(plan, source, measurement),
            here=device_name("cpu"),
            factor=BLOCK_SIZE if self.vary is None else self.vary.name,
            trials=Trials(
                trace=trace,
                source=source,
                slo=self.slo,
                clock=measured.clock_cell,
                measurement=measurement,
                declared_burst=self.burst,
            ),
        )
        line = done.line(trace=ref.name, engine=REFERENCE)
        kept = done.stored(line)
        against = None if stored is None else compare(stored, kept)
        gates = against is not None and against.changed and not done.projected
        return SweepDecision(
            line=done.line(
                trace=ref.name, engine=REFERENCE, compared=None if against is None else against.said
            ),
            kept=kept,
            exit_code=done.exit_code or int(gates),
        )

    def _recipe(self, plan: SweepPlan, source: CostSource, measurement: Measurement) -> Recipe:
        (ref,), (pool_bytes,) = plan.traces, plan.pools_bytes
        engines = [option.engine for option in measurement.candidates]
        return Recipe(
            engine=engines[0] if engines else REFERENCE,
            engine_options=tuple(plan.engine_options.items()),
            kernel=source.kernel,
            layout=plan.layout,
            sharing=plan.prefix_cache,
            scheduler=plan.scheduler,
            watermark_blocks=plan.watermark_blocks,
            max_model_tokens=plan.max_model_tokens or longest_declared_tokens(ref.open()),
            pool_bytes=pool_bytes,
            trace_hash=ref.content_hash,
            slo=self.slo,
            device=source.device,
            declared_burst=self.burst,
            varied="" if self.vary is None else str(self.vary),
        )


@dataclass(frozen=True, slots=True)
class SweepDecision:
    """A decision as it is shown, recorded and kept."""

    line: DecisionLine
    kept: StoredDecision
    exit_code: int
    """4 where no option meets the SLO on this device; 1 where it is not what was stored; else 0."""

    def show(self) -> None:
        """Print the figures by phase, the verdicts, and the sentence a person can act on."""
        print_figures(decision_figures(self.line))
        print_table(phase_table(self.line))
        print_table(verdict_table(self.line))
        print_line(self.line.sentence, "bold")
        if self.line.compared is not None:
            print_line(f"against the stored decision: {self.line.compared}")

    def write(self, folder: Path) -> None:
        """Write ``decision.json`` beside the record.

        **Raises:** `TraceError` when the folder cannot be written.
        """
        path = folder / DECISION_NAME
        write_decision(path, self.kept)
        print_figures([("written", str(path))])


def decision_order(
    slo: str | None,
    calibration: Path | None,
    stored: Path | None,
    vary: str | None,
    burst: int | None = None,
) -> DecisionOrder | None:
    """Return what is to be decided; ``None`` without ``--slo``.

    **Raises:** `ConfigError` for options that need ``--slo``, for an SLO without costs, and for texts that
    cannot be read.
    """
    if slo is None:
        given = {"--calibration": calibration, "--decision": stored, "--vary": vary, "--burst": burst}
        if needless := [name for name, value in given.items() if value is not None]:
            raise ConfigError(f"{needless[0]} belongs to a decision: give --slo, such as ttft=500ms,itl=50ms")
        return None
    budgets = parse_slo(slo)
    if calibration is None:
        raise ConfigError(_NO_COSTS)
    return DecisionOrder(
        slo=budgets,
        calibration=calibration,
        stored=stored,
        vary=None if vary is None else parse_vary(vary),
        burst=burst or 0,
    )


def parse_vary(text: str) -> Vary:
    """Return the factor written as ``NAME=V1,V2``.

    **Raises:** `ConfigError` for any other text, and for fewer than two values or one that comes twice.

    >>> str(parse_vary("prefix-cache=true,false"))
    'prefix-cache=true,false'
    """
    name, _, values = text.partition("=")
    parts = [part.strip() for part in values.split(",")]
    if not name or len(parts) < 2 or not all(parts) or len(set(parts)) != len(parts):
        raise ConfigError(
            f"--vary {text!r}: expected NAME=V1,V2 with two values or more, such as prefix-cache=true,false"
        )
    return Vary(name, tuple(parse_engine_options([f"{name}={part}"])[name] for part in parts))


def _varied(cell: Cell, name: str, value: Scalar) -> Cell:
    match name:
        case "prefix-cache" if isinstance(value, bool):
            return replace(cell, prefix_cache=value)
        case "watermark-blocks" if type(value) is int:
            return replace(cell, watermark_blocks=value)
        case "max-sequences" if type(value) is int:
            return replace(cell, scheduler=replace(cell.scheduler, max_sequences=value))
        case "max-step-tokens" if type(value) is int:
            return replace(cell, scheduler=replace(cell.scheduler, max_step_tokens=value))
        case "pool":
            pool = parse_pool(str(value))
            if pool.unit == "bytes":
                return replace(cell, pool_bytes=pool.count)
        case _ if name not in _EXPECTED:
            return replace(cell, options=tuple(sorted({**dict(cell.options), name: value}.items())))
    raise ConfigError(f"--vary {name}: {_text(value)!r} is none of its values: expected {_EXPECTED[name]}")


_EXPECTED = {
    "prefix-cache": "true or false",
    "watermark-blocks": "whole numbers",
    "max-sequences": "whole numbers",
    "max-step-tokens": "whole numbers",
    "pool": "sizes in bytes, such as 20GiB",
}


def _text(value: Scalar) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
