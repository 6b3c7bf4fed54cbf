"""``ragtree bench retrieval``: the cost of searching in stages.

Measures search time and when the final hits are known, by stage. The baseline is Faiss's own one-shot search over the
same index, with results compared bit by bit.

Limits: synthetic vectors, one core, one query at a time, everything in memory.
"""

from typing import Annotated

import typer
from rich.table import Table

from ragtree_lab.commands.common.options import DEFAULT_RATIOS, SearchRatioOption, SeedOption, counts, numbers
from services.cli.connection import JsonOption
from services.cli.output import StepBars, print_json, results
from services.config import load_config


def retrieval(
    vectors: Annotated[int, typer.Option(min=1, help="Number of synthetic vectors.")] = 200_000,
    dim: Annotated[int, typer.Option(min=1, help="Dimension of the vectors.")] = 384,
    nlist: Annotated[int, typer.Option(min=1, help="Lists of the IVF index.")] = 1024,
    search_ratio: SearchRatioOption = DEFAULT_RATIOS,
    stages: Annotated[str, typer.Option(help="Stages per search, one row of results each.")] = "4,8",
    k: Annotated[int, typer.Option(min=1, help="Nearest vectors to return.")] = 10,
    queries: Annotated[int, typer.Option(min=1, help="Queries per row.")] = 100,
    seed: SeedOption = 0,
    as_json: JsonOption = False,
) -> None:
    """Compare searches in stages with Faiss's one-shot search, on one core. Results must be equal bit by bit."""
    import numpy as np

    from ragtree_lab.retrieval import RetrievalBenchmark
    from ragtree_lab.workloads.synthetic_vectors import SyntheticVectors

    if nlist > vectors:
        raise typer.BadParameter("must not exceed --vectors", param_hint="--nlist")
    ratios = numbers(search_ratio, "--search-ratio", most=1)
    most_stages = counts(stages, "--stages")
    with StepBars() as show:
        show("generating vectors", 0, 1)
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
        f"{result.vectors:,} vectors of {result.dim} dimensions, {result.lists} lists, {result.queries} queries; worst "
        f"ratio of searches over 2 ms: {result.worst_staged_over_oneshot:.3f}",
        highlight=False,
    )
