"""``ragtree bench recall``: the recall that the index costs.

Measures recall@5 and search time of the configured index on a question set. The baseline is exact search over the same
embeddings.

Limits: recall is by document, on questions that name their gold documents. The first run embeds the whole corpus.
"""

import asyncio
from typing import Annotated

import typer

from services.cli.bench.options import DEFAULT_DATA, DataOption
from services.cli.connection import JsonOption
from services.cli.output import StepBars, print_json, results
from services.config import load_config


def recall(
    dataset: Annotated[str, typer.Option(help="Question set: a folder below --data.")] = "squad",
    data: DataOption = DEFAULT_DATA,
    questions: Annotated[int, typer.Option(min=1, help="Questions to ask.")] = 2000,
    seed: Annotated[int, typer.Option(help="Seed of the question sample.")] = 0,
    as_json: JsonOption = False,
) -> None:
    """Compare the index's recall with exact search over the same embeddings."""
    from benchmarks.recall import RecallBenchmark
    from benchmarks.workloads.datasets import Dataset

    config = load_config()
    with StepBars() as show:
        benchmark = RecallBenchmark(config.retriever, config.cache_dir / "bench" / "recall", show)
        result = asyncio.run(benchmark.run(Dataset(data, dataset), questions, seed))
    if as_json:
        print_json(result)
        return
    results.print(
        f"{result.dataset}: recall@5 {result.recall_at_5:.4f}, exact {result.exact_recall_at_5:.4f} "
        f"({result.questions} questions, {result.documents} documents); "
        f"search {result.search_p50_ms:.1f} ms, exact {result.exact_search_p50_ms:.1f} ms (medians)",
        highlight=False,
    )
