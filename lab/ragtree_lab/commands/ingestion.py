"""``ragtree bench ingestion``: how fast documents are ingested, by type of the embedder's weights.

Measures documents per second, and recall@5, nDCG@10 and search time of the vectors. The baselines are float32 and
bfloat16, which torch computes; the types take turns.

Limits: no engine runs beside it; documents are plain text.
"""

import asyncio
from typing import Annotated

import typer
from rich.table import Table

from ragtree_lab.commands.common.options import DEFAULT_DATA, DataOption
from services.cli.connection import JsonOption
from services.cli.output import StepBars, print_json, results
from services.config import load_config


def ingestion(
    dataset: Annotated[str, typer.Option(help="Question set: a folder below --data.")] = "squad",
    data: DataOption = DEFAULT_DATA,
    one_in: Annotated[int, typer.Option(min=1, help="Use one in so many articles of the set.")] = 10,
    dtypes: Annotated[str, typer.Option(help="Types of weights, separated by commas.")] = "float32,bfloat16,int8",
    questions: Annotated[int, typer.Option(min=1, help="Questions to ask.")] = 1000,
    rounds: Annotated[int, typer.Option(min=1, help="How often each type ingests the documents.")] = 3,
    seed: Annotated[int, typer.Option(help="Seed of the question sample.")] = 0,
    as_json: JsonOption = False,
) -> None:
    """Compare the types of the embedder's weights: how fast documents are ingested, and how well they are found."""
    from ragtree_lab.ingestion import IngestionBenchmark
    from ragtree_lab.workloads.datasets import Dataset

    with StepBars() as show:
        benchmark = IngestionBenchmark(load_config().retriever, [name.strip() for name in dtypes.split(",")], show)
        result = asyncio.run(benchmark.run(Dataset(data, dataset, one_in=one_in), questions, rounds, seed))
    if as_json:
        print_json(result)
        return
    table = Table(title=f"{result.dataset}: {result.documents} documents, {result.questions} questions", box=None)
    for column in ("weights", "documents/s", "recall@5", "nDCG@10", "median search ms"):
        table.add_column(column, justify="left" if column == "weights" else "right")
    for row in result.rows:
        figures = (f"{row.documents_per_s:.1f}", f"{row.recall_at_5:.4f}", f"{row.ndcg_at_10:.4f}")
        table.add_row(row.dtype, *figures, f"{row.search_p50_ms:.1f}")
    results.print(table)
