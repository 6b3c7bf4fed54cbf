"""``ragtree bench retrieval``: what searching in stages costs, and what it tells early."""

from typing import Annotated

import typer
from rich.table import Table

from services.cli.bench.options import DEFAULT_RATIOS, SearchRatioOption, SeedOption, counts, numbers
from services.cli.connection import JsonOption
from services.cli.output import StepBars, print_json, results
from services.config import load_config


def retrieval(
    vectors: Annotated[int, typer.Option(min=1, help="Made-up vectors.")] = 200_000,
    dim: Annotated[int, typer.Option(min=1, help="Their dimension.")] = 384,
    nlist: Annotated[int, typer.Option(min=1, help="Lists of the inverted file.")] = 1024,
    search_ratio: SearchRatioOption = DEFAULT_RATIOS,
    stages: Annotated[str, typer.Option(help="Stages of a search: a row of figures each.")] = "4,8",
    k: Annotated[int, typer.Option(min=1, help="Nearest vectors to find.")] = 10,
    queries: Annotated[int, typer.Option(min=1, help="Queries behind each row.")] = 100,
    seed: SeedOption = 0,
    as_json: JsonOption = False,
) -> None:
    """Searches in stages against Faiss's own in one, on one core, with results equal to the last bit."""
    import numpy as np

    from benchmarks.retrieval import RetrievalBenchmark
    from benchmarks.workloads.synthetic_vectors import SyntheticVectors

    if nlist > vectors:
        raise typer.BadParameter("there are fewer vectors than lists", param_hint="--nlist")
    ratios = numbers(search_ratio, "--search-ratio", most=1)
    most_stages = counts(stages, "--stages")
    with StepBars() as show:
        show("making vectors up", 0, 1)
        data = SyntheticVectors(vectors, dim, seed)
        asked = np.stack([data.question(number) for number in range(queries)])
        benchmark = RetrievalBenchmark(data.documents(0, vectors), asked, k, nlist, load_config().retriever.index, show)
        result = benchmark.run(ratios, most_stages)
    if as_json:
        print_json(result)
        return
    table = Table("index", "stages", "one shot", "in stages", "ratio", "unequal", "final, or recall, after each stage")
    for row in result.rows:
        table.add_row(
            f"IVF, {row.search_ratio:.1%}",
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
