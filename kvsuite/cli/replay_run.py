"""The work behind `kvsuite replay`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, cast

from kvsuite.cli.figures import engine_figures, replay_figures, verdict_lines
from kvsuite.cli.output import RunFolder, engine_slug, print_figures, print_line, progress_bar, short_name
from kvsuite.cli.request_replay import closing_lines, limited, request_engine_figures, request_figures
from kvsuite.cli.setup import CacheOptions, TraceOptions, engine_config, open_trace, open_worker, slots_mode
from kvsuite.cli.trace_figures import trace_figures
from kvsuite.device.select import resolve_device
from kvsuite.engine.registry import is_request_driven, open_any_engine
from kvsuite.record.build import trace_line
from kvsuite.record.provenance import utc_now
from kvsuite.replay.driver import replay
from kvsuite.replay.judged import judged_replay
from kvsuite.replay.requests.driver import RequestReplay, replay_requests
from kvsuite.sweep.lines import replay_lines
from kvsuite.trace.identity import content_hash

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvsuite.cli.sizes import PoolSize
    from kvsuite.engine.config import EngineConfig
    from kvsuite.engine.contract import Engine
    from kvsuite.replay.driver import Replay
    from kvsuite.replay.scheduler import SchedulerConfig
    from kvsuite.trace.model import Trace

    Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayOrder:
    """Everything `kvsuite replay` was asked for."""

    trace: str
    trace_options: TraceOptions
    cache: CacheOptions
    scheduler: SchedulerConfig
    engine: str
    block_size: int
    pool: PoolSize
    slots: str | None
    device: str
    read_all: bool = False
    """Judge as short lifecycles are judged."""
    out: Path | None

    @property
    def trace_name(self) -> str:
        """What the trace is called in paths and records."""
        return short_name(self.trace)

    @property
    def folder(self) -> Path:
        """Where record and page go."""
        name = f"replay-{self.trace_name}-{engine_slug(self.engine)}-b{self.block_size}"
        return Path("reports") / name if self.out is None else self.out


def run(order: ReplayOrder) -> int:
    """Replay, print, write; return the exit code: 1 when a law was broken, else 0."""
    started_at = utc_now()
    device = resolve_device(order.device)
    mode = slots_mode(order.slots, device)
    trace = open_trace(order.trace, order.trace_options)
    print_figures(trace_figures(order.trace, trace, order.trace_options.limit))
    config = engine_config(order.cache, trace, block_size=order.block_size, pool=order.pool)
    play = _player(order, trace, config, mode, device)
    folder = RunFolder(order.folder, started_at, device)
    folder.check()
    started_s = perf_counter()
    with progress_bar(f"replay {order.trace_name}") as progress:
        done = play(progress)
    duration_s = perf_counter() - started_s
    seen_outside = done if isinstance(done, RequestReplay) else None
    print_figures(request_figures(trace, seen_outside) if seen_outside else replay_figures(trace, done))
    exit_code = 1 if done.violations else 0
    lines = replay_lines(
        done,
        case=f"replay/{order.trace_name}",
        engine=order.engine,
        trace=order.trace_name,
        duration_s=duration_s,
        device=device,
    )
    asked = trace_line(trace, ref=order.trace_name, content_hash=content_hash(trace))
    folder.write([asked, *lines], exit_code)
    for text, style in verdict_lines(done, closing_lines(seen_outside) if seen_outside else None):
        print_line(text, style)
    return exit_code


def _player(
    order: ReplayOrder, trace: Trace, config: EngineConfig, mode: str, device: str
) -> Callable[[Progress], Replay]:
    """Open the engine, say what runs, and return what takes the trace through it."""
    engine = open_any_engine(order.engine, config)
    scheduler = order.scheduler
    if is_request_driven(engine):
        asked = limited(order, engine, config)
        print_figures(request_engine_figures(asked.spec, scheduler))
        return lambda progress: replay_requests(trace, asked, scheduler, progress=progress)
    driven = cast("Engine", engine)
    print_figures(engine_figures(driven.spec, scheduler))
    worker = open_worker(mode, device, driven.spec, config.layout, scheduler.max_sequences)
    play = judged_replay if order.read_all else replay
    return lambda progress: play(trace, driven, worker, scheduler, progress=progress)
