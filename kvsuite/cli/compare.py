"""`kvsuite compare`: contiguous reservation against paged allocation of one workload."""

from typing import Annotated

import typer

from kvsuite.cli import options as o


def compare(
    workload: Annotated[
        str, typer.Argument(metavar="WORKLOAD", help="Trace file, or the name of a built-in workload.")
    ] = "handbook",
    churn: Annotated[
        str, typer.Option(help="Workload that is replayed to count fragmentation events.")
    ] = o.EMBEDDED_TRACE,
    engine: o.EngineName = "reference",
    block_size: Annotated[
        int, typer.Option(min=1, help="Tokens a block of the paged engine has room for.")
    ] = 16,
    max_tokens: Annotated[int, typer.Option(min=1, help="Tokens that plain reservation sets aside.")] = 2048,
    churn_tokens: Annotated[
        int, typer.Option(min=1, help="Slots of the pool in which fragmentation events are counted.")
    ] = 4096,
    model: o.Model = "llama-3.1-8b",
    out: o.Out = None,
) -> None:
    """Compare contiguous and paged allocation.

    What each holds of one workload, and how often it refuses for a hole under churn.
    """
    from kvsuite.cli.compare_run import CompareOrder, run

    order = CompareOrder(
        workload=workload,
        churn=churn,
        engine=engine,
        block_size=block_size,
        max_tokens=max_tokens,
        churn_tokens=churn_tokens,
        model=model,
        out=out,
    )
    raise typer.Exit(run(order))
