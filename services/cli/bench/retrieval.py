"""``ragtree bench retrieval``: what searching in stages costs, and what it tells early."""

from typing import Annotated

import typer
from rich.table import Table

from services.cli.bench.options import SeedOption
from services.cli.connection import JsonOption
from services.cli.output import StepBars, print_json, results
from services.config import load_config


def retrieval(
    vectors: Annotated[int, typer.Option(min=1, help="Made-up vectors.")] = 200_000,
    dim: Annotated[int, typer.Option(min=1, help="Their dimension.")] = 384,
    nlist: Annotated[int, typer.Option(min=1, help="Lists of the inverted file.")] = 1024,
    search_ratio: Annotated[
        list[float] | None,
        typer.Option(min=0, max=100, help="Percent of the lists to search; give several. [default: 12.5 25 50 100]"),
    ] = None,
    stages: Annotated[
        list[int] | None, typer.Option(min=1, help="Stages of a search; give several. [default: 4 8]")
    ] = None,
    k: Annotated[int, typer.Option(min=1, help="Nearest vectors to find.")] = 10,
    queries: Annotated[int, typer.Option(min=1, help="Queries behind each row.")] = 100,
    seed: SeedOption = 0,
    as_json: JsonOption = False,
) -> None:
    """Searches in stages against Faiss's own in one, on one core, with results equal to the last bit."""
    from benchmarks.retrieval import RetrievalBenchmark
    from benchmarks.vectors import ClusteredVectors

    if nlist > vectors:
        raise typer.BadParameter("there are fewer vectors than lists", param_hint="--nlist")
    with StepBars() as show:
        data = ClusteredVectors(vectors, dim, queries, seed)
        benchmark = RetrievalBenchmark(data, k, nlist, load_config().retriever.index, show)
        result = benchmark.run(search_ratio or (12.5, 25.0, 50.0, 100.0), stages or (4, 8))
    if as_json:
        print_json(result)
        return
    table = Table("index", "stages", "one shot", "in stages", "ratio", "unequal", "final, or recall, after each stage")
    for row in result.rows:
        table.add_row(
            f"IVF, {row.search_ratio:g} %",
            str(row.stages),
            f"{row.oneshot_ms:.2f} ms",
            f"{row.staged_ms:.2f} ms",
            f"{row.staged_over_oneshot:.2f}",
            str(row.unequal),
            " ".join(f"{share:.2f}" for share in row.final_by_stage),
        )
    for graph in result.hnsw:
        table.add_row(
            f"HNSW, beam {graph.beam}",
            str(len(graph.recall_by_stage)),
            f"{graph.oneshot_ms:.2f} ms",
            f"{graph.staged_ms:.2f} ms",
            f"{graph.staged_over_oneshot:.2f}",
            str(graph.unequal),
            " ".join(f"{share:.2f}" for share in graph.recall_by_stage),
        )
    results.print(table)
    results.print(
        f"{result.vectors:,} vectors of {result.dim}, {result.lists} lists, {result.queries} queries; the worst ratio "
        f"over 2 ms is {result.worst_staged_over_oneshot:.3f}",
        highlight=False,
    )
