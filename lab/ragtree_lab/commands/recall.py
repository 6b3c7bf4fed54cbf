"""``ragtree bench recall``: how well each kind of search finds the documents that answer questions.

Measures recall@5, nDCG@10 and search time on a question set. The baseline of the dense index is exact search over the
same embeddings.

Limits: by document, on questions that name their gold documents. The first run embeds the whole corpus.
"""

import asyncio
from typing import Annotated

import typer
from msgspec.structs import asdict
from rich.table import Table

from protocol.retrieval import SearchKind
from ragtree_lab.commands.common.options import DEFAULT_DATA, DataOption
from services.cli.connection import JsonOption
from services.cli.output import StepBars, print_json, results
from services.config import load_config


def recall(
    dataset: Annotated[str, typer.Option(help="Question set: a folder below --data.")] = "squad",
    data: DataOption = DEFAULT_DATA,
    search: Annotated[str, typer.Option(help="Kinds of search, separated by commas.")] = "dense,sparse,hybrid",
    questions: Annotated[int, typer.Option(min=1, help="Questions to ask.")] = 2000,
    seed: Annotated[int, typer.Option(help="Seed of the question sample.")] = 0,
    as_json: JsonOption = False,
) -> None:
    """Compare the kinds of search, and the dense index with exact search over the same embeddings."""
    from ragtree_lab.recall import RecallBenchmark
    from ragtree_lab.workloads.datasets import Dataset

    config = load_config()
    kinds = _kinds(search)
    with StepBars() as show:
        benchmark = RecallBenchmark(config.retriever, config.cache_dir / "bench" / "recall", kinds, show)
        result = asyncio.run(benchmark.run(Dataset(data, dataset), questions, seed))
    if as_json:
        print_json(result)
        return
    table = Table(title=f"{result.dataset}: {result.questions} questions, {result.documents} documents", box=None)
    for column in ("search", "recall@5", "nDCG@10", "median ms"):
        table.add_column(column, justify="left" if column == "search" else "right")
    for name, recalled in asdict(result.recall_at_5).items():
        if recalled is not None:
            gain, took = getattr(result.ndcg_at_10, name), getattr(result.search_p50_ms, name)
            table.add_row(name, f"{recalled:.4f}", f"{gain:.4f}", f"{took:.1f}")
    results.print(table)


def _kinds(names: str) -> list[SearchKind]:
    try:
        return [SearchKind(name.strip()) for name in names.split(",")]
    except ValueError as error:
        raise typer.BadParameter(f"{error}: {', '.join(SearchKind)}", param_hint="--search") from error
