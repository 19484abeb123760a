"""Arguments and options that several verbs share. Imports nothing heavy: `--help` reads this module."""

from pathlib import Path
from typing import Annotated

import typer

EMBEDDED_TRACE = "churn"
"""The built-in workload that `kvsuite replay` takes when none is named."""
DEFAULT_POOL = "20GiB"
EMBEDDED_POOL = "384MiB"
"""Pool for `EMBEDDED_TRACE`: small enough to be under pressure."""
POOL_DEFAULTS = f"[default: {DEFAULT_POOL}; {EMBEDDED_POOL} for the built-in {EMBEDDED_TRACE}]"

TraceArgument = Annotated[
    str, typer.Argument(metavar="TRACE", help="Trace file, or the name of a built-in workload.")
]
TraceArguments = Annotated[
    list[str], typer.Argument(metavar="TRACE...", help="Trace files, or names of built-in workloads.")
]
EngineName = Annotated[str, typer.Option("--engine", help="Registered engine; `kvsuite engines` lists them.")]
Model = Annotated[str, typer.Option(help="Model whose cache shape is used.")]
DtypeName = Annotated[
    str | None,
    typer.Option("--dtype", help="fp32, fp16, bf16 or fp8; the model's own without it."),
]
Layers = Annotated[int | None, typer.Option(min=1, help="Layers; the model's own without it.")]
TensorParallel = Annotated[
    int,
    typer.Option("--tp", min=1, help="Tensor-parallel ranks; rank 0 is replayed."),
]
WatermarkBlocks = Annotated[int, typer.Option(min=0, help="Blocks that admission keeps back.")]
NoPrefixCache = Annotated[bool, typer.Option("--no-prefix-cache", help="Share no prefixes.")]
MaxModelTokens = Annotated[
    int | None,
    typer.Option(min=1, help="Cap of a request that declares none; the longest of the trace without it."),
]
EngineOption = Annotated[
    list[str] | None,
    typer.Option(
        "--option",
        metavar="NAME=VALUE",
        help="Option of the engine's own, such as window_tokens=128: whole number, true, false or text; "
        "repeatable.",
    ),
]
MaxSequences = Annotated[int, typer.Option(min=1, help="Sequences at once.")]
MaxStepTokens = Annotated[int, typer.Option(min=1, help="Token budget of a step.")]
Step = Annotated[str, typer.Option(help="Duration of a step, such as 50ms.")]

TraceBlockSize = Annotated[
    int | None,
    typer.Option(min=1, help="Tokens a prefix hash of the file stands for."),
]
TimeUnit = Annotated[str | None, typer.Option(help="s, ms, us or ns: unit of the file's times.")]
Tail = Annotated[
    str | None,
    typer.Option(help="ceil or floor: how the file hashes a last, partial block."),
]
Format = Annotated[
    str | None, typer.Option(help="Format, such as mooncake; found from the content without it.")
]
Sort = Annotated[bool, typer.Option("--sort", help="Sort rows that go back in time.")]
Limit = Annotated[int | None, typer.Option(min=1, help="Only the first N requests.")]
Repeat = Annotated[
    int,
    typer.Option(min=1, help="The whole trace, overlays included, N times over, one copy after the other."),
]
Overlay = Annotated[
    list[str] | None,
    typer.Option(
        "--overlay",
        metavar="RULE",
        help="Adds what the trace does not carry, such as cancel:every=37; repeatable.",
    ),
]
OverlaySeed = Annotated[int, typer.Option(min=0, help="Seed of the overlays' draws.")]
Out = Annotated[Path | None, typer.Option(help="Folder for run.jsonl and report.html.")]


def default_pool(*traces: str) -> str:
    """Return the pool that ``traces`` are given where none is asked for."""
    return EMBEDDED_POOL if set(traces) == {EMBEDDED_TRACE} else DEFAULT_POOL
