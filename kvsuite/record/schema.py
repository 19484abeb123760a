"""Lines of a run record (``run.jsonl``), schema 1.

Every line is an object with a ``kind``. A reader refuses another major version and skips nothing.
Figures carry what they rest on: trace hash, effective configuration, observation window, control.
``null`` means *could not be seen*.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from kvsuite.record.decision_line import DecisionLine as DecisionLine
from kvsuite.record.decision_rows import DecisionRow as DecisionRow
from kvsuite.record.drift_rows import DriftRow as DriftRow
from kvsuite.record.rows import ComparisonRow as ComparisonRow
from kvsuite.record.rows import MatrixRow as MatrixRow
from kvsuite.record.rows import Positive as Positive
from kvsuite.record.rows import SweepRow as SweepRow

SCHEMA = "kvsuite.run"
SCHEMA_VERSION = "1.5"


class Line(msgspec.Struct, frozen=True, tag_field="kind", kw_only=True, forbid_unknown_fields=True):
    """One line of a record."""


class Header(Line, tag="header", frozen=True, kw_only=True):
    """Always first: what wrote the record, on what."""

    schema: str = SCHEMA
    schema_version: str = SCHEMA_VERSION
    started_at: str
    """UTC, ISO 8601."""
    command: list[str]
    kvsuite_version: str
    python: str
    platform: str
    device: str
    """``cpu`` or ``cuda``."""
    device_name: str
    packages: dict[str, str] = {}


class PoolFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The fixed facts of one pool."""

    key: str
    num_blocks: Positive
    block_size: Positive
    bytes_per_token: Positive
    block_bytes: Positive
    pad_bytes_per_block: int
    never_allocatable_blocks: int
    pool_bytes: Positive
    contiguous: bool


class EngineLine(Line, tag="engine", frozen=True, kw_only=True):
    """An engine as it really ran; ``ref`` is what other lines call it."""

    ref: str
    name: str
    version: str
    adapter_version: int
    engine_hash: str
    capabilities: list[str]
    effective: dict[str, int | str | bool]
    layout: str
    dtype: str
    pools: list[PoolFacts]
    provenance: dict[str, str] = {}


class TraceLine(Line, tag="trace", frozen=True, kw_only=True):
    """A trace that was replayed; ``ref`` is what other lines call it."""

    ref: str
    content_hash: str
    format: str
    requests: int
    rows_read: int
    dropped: dict[str, int]
    filled: list[str]
    prompt_tokens: int
    output_tokens: int
    forks: int
    cancels: int
    license: str = ""


class LedgerLine(Line, tag="ledger", frozen=True, kw_only=True):
    """The ledger of one pool over one replay, thinned to at most a few thousand rows.

    ``steps[k]`` is the last step of row ``k``'s bucket; level columns hold the bucket's last value, event
    columns the bucket's sum. The first maxima of ``payload`` and of ``live_blocks`` each end a bucket, so
    the rows show them; a replay on the compiled core keeps too few rows for that once it is longer than some
    thousands of steps. ``totals``, ``peaks``, ``means`` and the closing gap are over every step.
    """

    ref: str
    case: str
    engine: str
    trace: str
    pool: PoolFacts
    recipe: dict[str, int | str | bool]
    steps_total: int
    first_step: int
    last_step: int
    step_us: int
    """0 where steps last as long as what they do."""
    steps_per_row: int
    columns: list[str]
    steps: list[int]
    rows: list[list[int | None]]
    totals: dict[str, int | None]
    peaks: dict[str, int | None]
    means: dict[str, float | None]
    """Per-step means of level columns over the observation window."""
    closing_gap_bytes: int | None
    """Largest absolute gap between pool and categories over all steps: 0 where every step closes, null
    where a category could not be seen."""
    final_lengths: list[int] = []
    """Lengths, in tokens, at which sequences ended; empty where they were too many to be kept."""


class ContentLine(Line, tag="content", frozen=True, kw_only=True):
    """What the worker wrote and read back in one replay."""

    ledger: str
    """``ref`` of the replay's first ledger; it speaks for every pool of that replay."""
    mode: str
    """``full``, ``probe``, ``engine`` (its own tensors) or ``none``: the engine lets us see no slots, or runs
    on the compiled core, which has none."""
    tokens_written: int
    tokens_read: int
    mismatches: int
    first_mismatch: str | None = None


class MemoryLine(Line, tag="memory", frozen=True, kw_only=True):
    """One reading of device memory; see `kvsuite.ledger.timeline.DeviceLine`."""

    case: str
    step: int
    owner: Literal["suite", "engine"]
    observer: str
    observed_bytes: int | None
    pool_bytes: int | None
    tables_bytes: int | None
    workspace_bytes: int | None
    rounding_bytes: int | None
    reserve_bytes: int | None
    unattributed_bytes: int | None
    unattributed_bound_bytes: int
    mapped_bytes: int | None
    committed_bytes: int | None
    expected_committed_bytes: int | None
    claimed_cache_bytes: int | None


class CaseLine(Line, tag="case", frozen=True, kw_only=True):
    """The outcome of one case on one engine."""

    case: str
    """Path below the cases root with parameters, never the pytest node id."""
    engine: str
    outcome: Literal["passed", "failed", "error", "skipped", "xfailed", "xpassed"]
    duration_s: float
    device: str
    worker: str = ""
    message: str = ""
    invariants: list[str] = []
    """Invariants that were violated, by name."""
    not_judged: list[str] = []
    """Invariants that could not be judged, with the column that was absent."""
    capability: str | None = None
    """For a skip: the capability the engine does not claim."""
    deviation: str | None = None
    """For an expected failure, or laws set apart: kind, reason and issue, and these laws."""


class GoldenLine(Line, tag="golden", frozen=True, kw_only=True):
    """How one ledger stands to its golden."""

    case: str
    engine: str
    path: str
    verdict: Literal[
        "match",
        "regression",
        "footprint",
        "unblessed",
        "drift",
        "missing",
        "unrecorded",
        "suite changed",
        "written",
    ]
    first_divergence: str | None = None
    """Step, column, expected and found, in one sentence."""
    diff: list[str] = []
    """Rows around the first divergence, each prefixed by ``-``, ``+`` or a blank; at most 40."""
    lines_differ: int = 0
    changed_preimage: list[str] = []
    """What changed in the engine hash's preimage, as ``key: old -> new``."""
    accept: str = ""
    """The command that accepts what was observed."""


class ComparisonLine(Line, tag="comparison", frozen=True, kw_only=True):
    """Contiguous and paged allocation of one workload, with its lengths."""

    case: str
    trace: str
    block_size: int
    max_tokens: int
    lengths: list[int]
    rows: list[ComparisonRow]
    caveat: str


class SweepLine(Line, tag="sweep", frozen=True, kw_only=True):
    """Block sizes and controls replayed on one trace, one pool in bytes, one layout."""

    trace: str
    layout: str
    pool_bytes: int
    recipe: dict[str, int | str | bool]
    rows: list[SweepRow]


class DriftLine(Line, tag="drift", frozen=True, kw_only=True):
    """Engines, or versions of one, each held against the one before it on one trace and configuration."""

    case: str
    trace: str
    layout: str
    recipe: dict[str, int | str | bool]
    """How every one of them was asked to be opened and driven."""
    rows: list[DriftRow]


class MatrixLine(Line, tag="matrix", frozen=True, kw_only=True):
    """Every broken engine against every test function, with goldens off."""

    functions: int
    """Test functions that ran."""
    left_out: list[str] = []
    """Cases that did not run on every mutant, each with the reason."""
    rows: list[MatrixRow]


class NoteLine(Line, tag="note", frozen=True, kw_only=True):
    """Something a reader must know: a fill, a projection, an option that was not run."""

    text: str
    level: Literal["info", "warning"] = "info"


class End(Line, tag="end", frozen=True, kw_only=True):
    """Always last: a record without it was cut short."""

    finished_at: str
    exit_status: int
    counts: dict[str, int]
    """Cases by outcome."""
    verdicts: dict[str, int]
    """Goldens by verdict."""


AnyLine = (
    Header
    | EngineLine
    | TraceLine
    | LedgerLine
    | ContentLine
    | MemoryLine
    | CaseLine
    | GoldenLine
    | ComparisonLine
    | SweepLine
    | DecisionLine
    | DriftLine
    | MatrixLine
    | NoteLine
    | End
)
