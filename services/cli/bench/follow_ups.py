"""``ragtree bench follow-ups``: whether follow-up questions find their documents.

Measures the share of conversations whose last question finds a document that answers it, searched with earlier
questions in front. The baseline is the last question alone.

Limits: a small set of our own about Python's standard library.
"""

import asyncio

from rich.table import Table

from services.cli.connection import JsonOption
from services.cli.output import StepBars, print_json, results
from services.config import load_config


def follow_ups(as_json: JsonOption = False) -> None:
    """Search the last questions of conversations, with and without the questions before them."""
    from benchmarks.follow_ups.benchmark import EARLIER, KINDS, FollowUpBenchmark

    config = load_config()
    with StepBars() as show:
        benchmark = FollowUpBenchmark(config.retriever, config.cache_dir / "bench" / "follow-ups", show)
        result = asyncio.run(benchmark.run())
    if as_json:
        print_json(result)
        return
    table = Table("last question", "conversations", *(f"{earlier} earlier" for earlier in EARLIER), box=None)
    for kind, conversations in KINDS.items():
        shares = [f"{row.found_at_5:.2f}" for row in result.rows if row.kind == kind]
        table.add_row(kind, str(len(conversations)), *shares)
    results.print(table)
