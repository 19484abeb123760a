"""The work behind `kvsuite drift`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kvsuite.cli.drift_figures import chain_table, change_lines, column_table, footprint_lines
from kvsuite.cli.options import default_pool
from kvsuite.cli.output import (
    RunFolder,
    engine_slug,
    print_figures,
    print_line,
    print_table,
    progress_bar,
    short_name,
)
from kvsuite.cli.setup import engine_config, engine_in_full, open_trace
from kvsuite.cli.sizes import parse_pool
from kvsuite.cli.trace_figures import trace_figures
from kvsuite.engine import environments
from kvsuite.engine.registry import home_of
from kvsuite.errors import ConfigError
from kvsuite.record.build import MAX_ROWS, trace_line
from kvsuite.record.provenance import utc_now
from kvsuite.record.schema import EngineLine
from kvsuite.sweep.drift import DriftChain, DriftPlan, drift_line
from kvsuite.sweep.lines import replay_lines
from kvsuite.trace.identity import content_hash

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from kvsuite.cli.setup import CacheOptions, TraceOptions
    from kvsuite.cli.sizes import PoolSize
    from kvsuite.record.schema import AnyLine, DriftRow
    from kvsuite.replay.scheduler import SchedulerConfig
    from kvsuite.sweep.drift import DriftLink

CHAIN_ROWS = 256
"""Rows kept of each ledger where there are more than two engines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DriftOrder:
    """Everything `kvsuite drift` was asked for."""

    engines: tuple[str, ...]
    from_version: str | None
    to_version: str | None
    all_versions: bool
    traces: tuple[str, ...]
    trace_options: TraceOptions
    cache: CacheOptions
    scheduler: SchedulerConfig
    block_size: int
    pool: PoolSize | None
    out: Path | None

    def folder(self, names: Sequence[str]) -> Path:
        """Where record and page go."""
        ends = "-".join(engine_slug(name) for name in (names[0], names[-1]))
        return Path("reports") / f"drift-{ends}" if self.out is None else self.out

    def plan(self, trace: str) -> DriftPlan:
        """Return what every engine is given, the trace opened."""
        opened = open_trace(trace, self.trace_options)
        pool = self.pool or parse_pool(default_pool(trace))
        config = engine_config(self.cache, opened, block_size=self.block_size, pool=pool)
        return DriftPlan(trace=opened, config=config, scheduler=self.scheduler)

    def names(self) -> tuple[str, ...]:
        """Return the engines to be compared, oldest first.

        **Raises:** `ConfigError` for names and versions that make no comparison; `EnvironmentUnavailable`
        where the index is asked for its versions and does not answer.
        """
        if self.from_version is None and self.to_version is None:
            return self._named()
        if len(self.engines) != 1 or "@" in self.engines[0] or None in (self.from_version, self.to_version):
            given = {"--from": self.from_version, "--to": self.to_version}
            said = " ".join(f"{option} {version}" for option, version in given.items() if version is not None)
            raise ConfigError(
                f"{said} with {', '.join(self.engines)}: give both, and one engine without a version, such "
                "as: drift vllm --from 0.23.0 --to 0.24.0"
            )
        (name,) = self.engines
        ends = (str(self.from_version), str(self.to_version))
        versions = (
            between(environments.released(home_of(name)[0]), *ends, name) if self.all_versions else ends
        )
        return _different(f"{name}@{version}" for version in versions)

    def _named(self) -> tuple[str, ...]:
        if self.all_versions:
            raise ConfigError("--all walks the versions of one engine: give it, --from and --to")
        return _different(self.engines)


def _different(engines: Iterable[str]) -> tuple[str, ...]:
    """Return engines by the version that each name stands for.

    **Raises:** `ConfigError` for fewer than two, and for one that stands there twice.
    """
    named = tuple(engine_in_full(engine) for engine in engines)
    if len(named) < 2 or len(set(named)) < len(named):
        raise ConfigError(
            f"{', '.join(named)}: give two or more different engines, such as vllm@0.23.0 vllm@0.24.0, or "
            "one name with --from and --to"
        )
    return named


def between(released: Sequence[str], first: str, last: str, name: str) -> tuple[str, ...]:
    """Return the versions from ``first`` to ``last``, both included; ``released`` is oldest first.

    **Raises:** `ConfigError` for a version that is not released, and for two in the wrong order.
    """
    newest = {environments.NEWEST: released[-1]}
    ends = [newest.get(version, version) for version in (first, last)]
    for version in ends:
        if version not in released:
            raise ConfigError(
                f"{name} {version} is not on the package index, so no walk can begin or end there: "
                f"expected one of {', '.join(released)}"
            )
    start, stop = (released.index(version) for version in ends)
    if start >= stop:
        raise ConfigError(f"{name} {ends[0]} is not older than {ends[1]}: give the older one with --from")
    return tuple(released[start : stop + 1])


def run(order: DriftOrder) -> int:
    """Compare, print, write; return the exit code: 1 when counts or broken laws differ, else 0."""
    started_at = utc_now()
    names = order.names()
    folder = RunFolder(order.folder(names), started_at)
    folder.check()
    lines: list[AnyLine] = []
    rows: list[DriftRow] = []
    refs = _refs(order.traces)
    for trace, ref in zip(order.traces, refs, strict=True):
        found = list(_compared(order, names, trace, ref, lines))
        _print_comparison(found)
        rows += found
    exit_code = 1 if any(row.verdict == "drift" for row in rows) else 0
    folder.write(_each_engine_once(lines), exit_code)
    return exit_code


def _compared(
    order: DriftOrder, names: Sequence[str], trace: str, ref: str, lines: list[AnyLine]
) -> Iterator[DriftRow]:
    plan = order.plan(trace)
    print_figures(trace_figures(trace, plan.trace, order.trace_options.limit))
    chain = DriftChain(plan, go_on=order.all_versions)
    lines.append(trace_line(plan.trace, ref=ref, content_hash=content_hash(plan.trace)))
    rows: list[DriftRow] = []
    for name in names:
        with progress_bar(name) as progress:
            link = chain.run(name, progress)
        rows.append(link.row)
        lines += _link_lines(link, ref, MAX_ROWS if len(names) == 2 else CHAIN_ROWS)
    if len(rows) - len(chain.errors) < 2 and chain.errors:
        raise chain.errors[0]
    lines.append(drift_line(plan, rows, case=f"drift/{ref}", trace=ref))
    yield from rows


def _link_lines(link: DriftLink, trace: str, max_rows: int) -> Iterator[AnyLine]:
    if link.replay is not None:
        engine = link.row.engine
        yield from replay_lines(
            link.replay,
            case=f"drift/{trace}/{engine}",
            engine=engine,
            trace=trace,
            duration_s=link.duration_s,
            max_rows=max_rows,
        )


def _each_engine_once(lines: Sequence[AnyLine]) -> Iterator[AnyLine]:
    known: set[str] = set()
    for line in lines:
        if isinstance(line, EngineLine):
            if line.ref in known:
                continue
            known.add(line.ref)
        yield line


def _print_comparison(rows: Sequence[DriftRow]) -> None:
    if len(rows) > 2:
        print_table(chain_table(rows))
        return
    (_, row) = rows
    style = {"equal": "green", "footprint": "yellow", "drift": "red"}
    said = f": {row.sentence}" if row.sentence else ""
    print_line(f"{row.verdict}: {row.against} -> {row.engine}{said}", style[str(row.verdict)])
    for pool in row.pools:
        if pool.changed:
            print_table(column_table(row, pool))
    print_figures(footprint_lines(row))
    print_figures(change_lines(row))


def _refs(traces: Sequence[str]) -> list[str]:
    """Return what records call the traces; a name that comes again is numbered."""
    names = [short_name(trace) for trace in traces]
    counts = [names[: k + 1].count(name) for k, name in enumerate(names)]
    return [name if count == 1 else f"{name} #{count}" for name, count in zip(names, counts, strict=True)]
