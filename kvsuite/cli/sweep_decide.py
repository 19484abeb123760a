"""The decision half of `kvsuite sweep`: step costs in, one verdict an option and a stored decision out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from msgspec import structs

from kvsuite.cli.output import cells_bar, print_figures, print_line, print_table
from kvsuite.cli.sizes import parse_slo
from kvsuite.cli.sweep_costs import calibrate_into, caution, local_device, open_costs
from kvsuite.cli.sweep_vary import parse_vary
from kvsuite.cli.sweep_verdicts import decision_figures, phase_table, verdict_table
from kvsuite.errors import ConfigError
from kvsuite.sweep import measure as measured
from kvsuite.sweep.decision import BLOCK_SIZE, decided
from kvsuite.sweep.lengths import longest_declared_tokens, waits_for_an_answer
from kvsuite.sweep.recipe import Recipe, compare, read_decision, write_decision
from kvsuite.sweep.trial import Trials

if TYPE_CHECKING:
    from pathlib import Path

    from kvsuite.cli.sweep_vary import Vary
    from kvsuite.record.schema import DecisionLine
    from kvsuite.sweep.costs import CostSource
    from kvsuite.sweep.decision import Decided
    from kvsuite.sweep.measure import Measurement
    from kvsuite.sweep.plan import SweepPlan
    from kvsuite.sweep.recipe import StoredDecision
    from kvsuite.sweep.slo import Slo

DECISION_NAME = "decision.json"
CALIBRATION_NAME = "calibration.json"
"""In the folder of a run that was given none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionOrder:
    """What `kvsuite sweep --slo` was asked for."""

    slo: Slo
    calibration: Path | None
    """``None``: this device is measured first."""
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

        **Raises:** `ConfigError` for more than one trace, pool or engine, for a trace of which no request
        could meet an SLO on any device, and for a factor that is varied at more than one block size, or to a
        value that it cannot have.
        """
        given = {"trace": plan.traces, "pool": plan.pools_bytes, "engine": plan.engines}
        for what, values in given.items():
            if len(values) != 1:
                raise ConfigError(
                    f"--slo decides on one {what}, and {len(values)} are given: give one at a time"
                )
        if not waits_for_an_answer(plan.traces[0].open()):
            raise ConfigError(
                f"{plan.traces[0].name}: no request waits for an answer, as each asks for 0 tokens or goes "
                "away before its last one, so that none can meet an SLO: give a trace with answers, or leave "
                "--slo out"
            )
        if self.vary is not None and len(plan.sizes) != 1:
            raise ConfigError(
                f"--vary {self.vary} changes one factor at a time: give one block size, such as --sizes 16; "
                f"found {len(plan.sizes)}"
            )
        if self.vary is not None:
            list(self.vary.cells(plan.cells()[0]))

    def costs(self, plan: SweepPlan, model: str, folder: Path, *, fresh: bool) -> CostSource:
        """Return what steps cost; without a calibration this device is measured, into the folder of the run.

        A calibration that lies there already is taken, unless all is to be done ``fresh``.

        **Raises:** `ConfigError` for sizes that the calibration does not have.
        """
        path = self.calibration or folder / CALIBRATION_NAME
        if self.calibration is None:
            if fresh:
                path.unlink(missing_ok=True)
            calibrate_into(path, model, plan.layout, plan.sizes)
        source = open_costs(path, plan.layout)
        for size in plan.sizes:
            source.costs(size)
        if (said := caution(source)) is not None:
            print_line(said, "yellow")
        return source

    def decide(self, plan: SweepPlan, source: CostSource, stored: StoredDecision | None) -> SweepDecision:
        """Clock every option, judge them, and hold the decision against the stored one."""
        (ref,), (engine,) = plan.traces, plan.engines
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
            here=local_device(source.device),
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
        line = done.line(trace=ref.name, engine=engine)
        kept = done.stored(line)
        against = None if stored is None else compare(stored, kept)
        gates = against is not None and against.changed and not done.projected
        return SweepDecision(
            line=structs.replace(line, compared=None if against is None else against.said),
            kept=kept,
            exit_code=_exit_code(measurement, done, gates=gates),
        )

    def _recipe(self, plan: SweepPlan, source: CostSource, measurement: Measurement) -> Recipe:
        (ref,), (pool_bytes,) = plan.traces, plan.pools_bytes
        engines = [option.engine for option in measurement.candidates]
        return Recipe(
            engine=engines[0] if engines else plan.engines[0],
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
            sizes=plan.sizes,
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
    """See `_exit_code`."""

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


def _exit_code(measurement: Measurement, done: Decided, *, gates: bool) -> int:
    """Return 1 where a law was broken, 2 where every option was refused, 4 where none meets the SLO on this
    device, 1 where the decision is not what was stored, else 0.
    """
    if any(option.broken for option in measurement.options):
        return 1
    if not measurement.candidates:
        return 2
    return done.exit_code or int(gates)


def decision_order(
    slo: str | None,
    calibration: Path | None,
    stored: Path | None,
    vary: str | None,
    burst: int | None = None,
) -> DecisionOrder | None:
    """Return what is to be decided; ``None`` without ``--slo``.

    **Raises:** `ConfigError` for options that need ``--slo``, and for texts that cannot be read.
    """
    if slo is None:
        given = {"--calibration": calibration, "--decision": stored, "--vary": vary, "--burst": burst}
        if needless := [name for name, value in given.items() if value is not None]:
            raise ConfigError(f"{needless[0]} belongs to a decision: give --slo, such as ttft=500ms,itl=50ms")
        return None
    budgets = parse_slo(slo)
    return DecisionOrder(
        slo=budgets,
        calibration=calibration,
        stored=stored,
        vary=None if vary is None else parse_vary(vary),
        burst=burst or 0,
    )
