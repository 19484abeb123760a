from __future__ import annotations

from html.parser import HTMLParser
from typing import TYPE_CHECKING, Any

import pytest

from kvsuite.ledger.row import CATEGORIES
from kvsuite.record.reader import Record
from kvsuite.record.schema import (
    CaseLine,
    ComparisonLine,
    ComparisonRow,
    ContentLine,
    DecisionLine,
    DriftLine,
    End,
    EngineLine,
    GoldenLine,
    Header,
    LedgerLine,
    MatrixLine,
    MemoryLine,
    NoteLine,
    PoolFacts,
    SweepLine,
    SweepRow,
    TraceLine,
)

if TYPE_CHECKING:
    import msgspec

    from kvsuite.record.schema import AnyLine

HASH = "kvt1-" + "0123456789abcdef" * 4
VOID = {"meta", "br", "input", "link", "img"}


class Builder:
    """Lines of a small run: a pool of 8 blocks of 4 tokens, 10 bytes a token and 2 bytes of padding a block.

    So the pool holds 8 * (4 * 10 + 2) = 336 bytes: 320 in 32 slots, and 16 of padding.
    """

    pool = PoolFacts(
        key="device/g0/r0",
        num_blocks=8,
        block_size=4,
        bytes_per_token=10,
        block_bytes=42,
        pad_bytes_per_block=2,
        never_allocatable_blocks=1,
        pool_bytes=336,
        contiguous=False,
    )
    header = Header(
        started_at="2026-01-02T03:04:05Z",
        command=["pytest", "--engine", "<toy>"],
        kvsuite_version="0.1.0",
        python="3.11.0",
        platform="Linux",
        device="cpu",
        device_name="a CPU",
    )

    def engine(self, ref: str = "toy", **more: Any) -> EngineLine:
        fields: dict[str, Any] = {
            "name": "toy",
            "version": "1.2",
            "adapter_version": 3,
            "engine_hash": "feedbeef",
            "capabilities": ["PAGED"],
            "effective": {"block_size": 4},
            "layout": "tiny L2",
            "dtype": "bfloat16",
            "pools": [self.pool],
        }
        return EngineLine(ref=ref, **(fields | more))

    def trace(self, ref: str = "churn", content_hash: str = HASH) -> TraceLine:
        return TraceLine(
            ref=ref,
            content_hash=content_hash,
            format="synthetic",
            requests=3,
            rows_read=5,
            dropped={"zero output": 2},
            filled=[],
            prompt_tokens=30,
            output_tokens=9,
            forks=1,
            cancels=0,
        )

    def ledger(
        self, rows: dict[str, list[int | None]] | None = None, case: str = "c", **more: Any
    ) -> LedgerLine:
        """A ledger with the columns given; payload and free fill 28 slots by default, one block is null."""
        given: dict[str, list[int | None]] = rows or {
            "payload": [3, 9, 6],
            "slack": [1, 3, 2],
            "free": [24, 16, 20],
        }
        length = len(next(iter(given.values())))
        zeros: list[int | None] = [0] * length
        columns = dict.fromkeys(CATEGORIES, zeros) | {"never_allocatable": [4] * length} | given
        seen = {name: [v for v in values if v is not None] for name, values in columns.items()}
        fields: dict[str, Any] = {
            "ref": f"{case}::toy::churn::device/g0/r0",
            "case": case,
            "engine": "toy",
            "trace": "churn",
            "pool": self.pool,
            "recipe": {"max_sequences": 4, "step_us": 50_000},
            "steps_total": length,
            "first_step": 0,
            "last_step": max(length - 1, 0),
            "step_us": 50_000,
            "steps_per_row": 1,
            "columns": list(columns),
            "steps": list(range(length)),
            "rows": [list(row) for row in zip(*columns.values(), strict=True)],
            "totals": {},
            "peaks": {name: max(values, default=None) for name, values in seen.items()},
            "means": {name: sum(values) / len(values) if values else None for name, values in seen.items()},
            "closing_gap_bytes": 0,
            "final_lengths": [3, 9, 6],
        }
        return LedgerLine(**(fields | more))

    def content(self, case: str = "c", **more: Any) -> ContentLine:
        fields: dict[str, Any] = {"mode": "probe", "tokens_written": 18, "tokens_read": 1234, "mismatches": 0}
        return ContentLine(ledger=f"{case}::toy::churn::device/g0/r0", **(fields | more))

    def replay(self, case: str = "c", **more: Any) -> list[AnyLine]:
        """Everything that the figures of one ledger rest on, and the ledger."""
        return [self.engine(), self.trace(), self.ledger(case=case, **more), self.content(case)]

    def case(self, case: str = "c", outcome: str = "passed", **more: Any) -> CaseLine:
        fields: dict[str, Any] = {"engine": "toy", "duration_s": 0.25, "device": "cpu"}
        return CaseLine(case=case, outcome=outcome, **(fields | more))  # type: ignore[arg-type]

    def golden(self, case: str = "c", verdict: str = "match", **more: Any) -> GoldenLine:
        fields: dict[str, Any] = {"engine": "toy", "path": "goldens/toy/c.json"}
        return GoldenLine(case=case, verdict=verdict, **(fields | more))  # type: ignore[arg-type]

    def memory(self, owner: str = "suite", **more: Any) -> MemoryLine:
        """300 bytes of pool and 36 of tables, 14 of rounding, 50 of reserve: 400 observed, all attributed."""
        fields: dict[str, Any] = {
            "case": "c",
            "step": 1,
            "observer": "kernel",
            "observed_bytes": 400,
            "pool_bytes": 300,
            "tables_bytes": 36,
            "workspace_bytes": 0,
            "rounding_bytes": 14,
            "reserve_bytes": 50,
            "unattributed_bytes": 0,
            "unattributed_bound_bytes": 0,
            "mapped_bytes": None,
            "committed_bytes": None,
            "expected_committed_bytes": None,
            "claimed_cache_bytes": None,
        }
        return MemoryLine(owner=owner, **(fields | more))  # type: ignore[arg-type]

    def comparison(self, **more: Any) -> ComparisonLine:
        """Lengths 50, 100 and 150 held in blocks of 16: 64 + 112 + 160 = 336 slots against 3 * 200."""

        def row(strategy: str, engine: str, reserved: int) -> ComparisonRow:
            return ComparisonRow(
                strategy=strategy,
                engine=engine,
                reserved_tokens=reserved,
                payload_tokens=300,
                fragmentation_events=0,
                refused_admissions=0,
            )

        fields: dict[str, Any] = {
            "case": "compare",
            "trace": "churn",
            "block_size": 16,
            "max_tokens": 200,
            "lengths": [50, 100, 150],
            "rows": [row("reserve all", "contiguous-max", 600), row("pages", "toy", 336)],
            "caveat": "",
        }
        return ComparisonLine(**(fields | more))

    def sweep(self, **more: Any) -> SweepLine:
        fields: dict[str, Any] = {
            "trace": "churn",
            "layout": "tiny L2",
            "pool_bytes": 336,
            "recipe": {"max_sequences": 4},
            "rows": [
                SweepRow(
                    option="block 8",
                    engine="toy",
                    block_size=8,
                    slack_share=0.25,
                    table_bytes_peak=2048,
                    steps=9,
                ),
                SweepRow(
                    option="block 2",
                    engine="toy",
                    block_size=2,
                    slack_share=0.05,
                    table_bytes_peak=8192,
                    steps=7,
                ),
                SweepRow(option="block 64", engine="toy", block_size=64, refused="larger than the <pool>"),
                SweepRow(option="hold all", engine="contiguous-max", block_size=1, steps=12),
            ],
        }
        return SweepLine(**(fields | more))

    def record(self, *lines: AnyLine, exit_status: int = 0, cut: bool = False) -> Record:
        def of(kind: type[msgspec.Struct]) -> tuple[Any, ...]:
            return tuple(line for line in lines if isinstance(line, kind))

        end = End(finished_at="2026-01-02T03:05:00Z", exit_status=exit_status, counts={}, verdicts={})
        return Record(
            header=self.header,
            engines=of(EngineLine),
            traces=of(TraceLine),
            ledgers=of(LedgerLine),
            contents=of(ContentLine),
            memories=of(MemoryLine),
            cases=of(CaseLine),
            goldens=of(GoldenLine),
            comparisons=of(ComparisonLine),
            sweeps=of(SweepLine),
            decisions=of(DecisionLine),
            drifts=of(DriftLine),
            matrices=of(MatrixLine),
            notes=of(NoteLine),
            end=None if cut else end,
        )


class Page(HTMLParser):
    """What a browser without JavaScript would find: tags with attributes, ids, and the text of each id."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.source = text
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.scripts: list[str] = []
        self._open: list[tuple[str, str | None]] = []
        self._texts: dict[str, list[str]] = {}
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.tags.append((tag, values))
        if tag not in VOID:
            self._open.append((tag, values.get("id")))
        if "id" in values:
            self._texts.setdefault(values["id"], [])

    def handle_endtag(self, tag: str) -> None:
        while self._open and self._open.pop()[0] != tag:
            pass

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1][0] in {"script", "style"}:
            if self._open[-1][0] == "script":
                self.scripts.append(data)
            return
        for _, name in self._open:
            if name is not None:
                self._texts[name].append(data)

    @property
    def ids(self) -> list[str]:
        return [values["id"] for _, values in self.tags if "id" in values]

    def text(self, name: str) -> str:
        return " ".join(" ".join(self._texts[name]).split())


@pytest.fixture
def build() -> Builder:
    return Builder()


@pytest.fixture
def parse() -> type[Page]:
    return Page
