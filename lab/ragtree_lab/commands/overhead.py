"""``ragtree bench overhead``: the time that the stack adds to its engine.

Measures time to first token and time per token over HTTP, through a stack started for the run. The baseline is the same
prompts run in the engine's own process.

Limits: synthetic documents, one machine, nothing cached. With the fake engine it measures the stack alone.
"""

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from ragtree_lab.commands.common.options import counts
from ragtree_lab.commands.common.own_stack import own_stack
from services.cli.connection import JsonOption
from services.cli.output import print_json, progress_bar, results
from services.config import Config, load_config

if TYPE_CHECKING:
    from ragtree_lab.overhead import OverheadResult

OVERHEAD_COLLECTION = "bench-overhead"
OVERHEAD_TOP_K = 4
OVERHEAD_ANSWER_TOKENS = 33
"""Tokens per answer: the first one, and enough others for a mean."""

OVERHEAD_WORDS = 120
"""Words per document. Four documents and the template make a prompt of about 1,500 tokens."""


def overhead(
    streams: Annotated[
        str, typer.Option(help="Numbers of concurrent streams, separated by commas, one row of results each.")
    ] = "1,4,16",
    samples: Annotated[
        int, typer.Option(min=1, help="Samples per row, rounded up to at least two rounds of all streams.")
    ] = 24,
    seed: Annotated[int, typer.Option(help="Seed of the synthetic documents.")] = 0,
    as_json: JsonOption = False,
) -> None:
    """Compare time to first token and time per token through the whole stack with the engine's own. Starts a stack."""
    wanted = dict.fromkeys(counts(streams, "--streams"), samples)
    result = asyncio.run(_overhead(load_config(), wanted, seed))
    if as_json:
        print_json(result)
        return
    table = Table(
        "streams", "samples", "engine p50", "stack p50", "overhead p50", "share", "engine p99", "stack p99", "per token"
    )
    for row in result.by_streams.values():
        table.add_row(
            str(row.streams),
            str(row.samples),
            f"{row.engine_p50_ms:.1f} ms",
            f"{row.stack_p50_ms:.1f} ms",
            f"{row.p50_overhead_ms:.1f} ms",
            f"{row.p50_overhead_share:.3f}",
            f"{row.engine_p99_ms:.1f} ms",
            f"{row.stack_p99_ms:.1f} ms",
            "" if row.per_token_overhead_ms is None else f"{row.per_token_overhead_ms:+.2f} ms",
        )
    results.print(table)
    results.print(f"prompts of {result.prompt_tokens_p50:.0f} tokens (median)", highlight=False)


async def _overhead(config: Config, samples: dict[int, int], seed: int) -> "OverheadResult":
    from loadtest.traffic.synthetic_corpus import SyntheticCorpus
    from ragtree_lab.overhead import OverheadBenchmark, ingest, questions_of

    groups = questions_of(samples)
    corpus = SyntheticCorpus(groups * OVERHEAD_TOP_K, OVERHEAD_WORDS, seed, per_topic=OVERHEAD_TOP_K)
    with progress_bar() as progress:
        bar = progress.add_task("starting a stack", total=None)
        async with own_stack(config, {}) as (http, parts):
            progress.update(bar, description="ingesting")
            await ingest(http, OVERHEAD_COLLECTION, corpus)
            progress.update(bar, description="measuring", total=groups - 1)
            benchmark = OverheadBenchmark(
                http,
                parts.retriever,
                parts.generator,
                parts.layout,
                tenant=config.gateway.default_tenant,
                collection=OVERHEAD_COLLECTION,
                top_k=OVERHEAD_TOP_K,
                max_tokens=OVERHEAD_ANSWER_TOKENS,
            )
            return await benchmark.run(samples, corpus, lambda streams: progress.advance(bar, streams))
