"""``ragtree bench overhead``: what the stack adds to its engine's time to first token."""

import asyncio
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import httpx
import typer
from rich.table import Table

from services.cli.bench.options import counts
from services.cli.connection import JsonOption
from services.cli.output import print_json, progress_bar, results
from services.config import Config, load_config
from services.stack.detached import StackProcess

if TYPE_CHECKING:
    from benchmarks.overhead import OverheadResult

OVERHEAD_COLLECTION = "bench-overhead"
OVERHEAD_TOP_K = 4
OVERHEAD_ANSWER_TOKENS = 33
"""An answer's tokens: the first, and enough others for a mean."""

OVERHEAD_WORDS = 120
"""A document's words; four documents and what stands round them make a prompt of about 1,500 tokens."""


def overhead(
    streams: Annotated[
        str, typer.Option(help="How many streams at once: numbers separated by commas, a row of figures each.")
    ] = "1,4,16",
    samples: Annotated[
        int, typer.Option(min=1, help="Samples behind each row; at least two rounds of so many streams are run.")
    ] = 24,
    seed: Annotated[int, typer.Option(help="Seed of the made-up documents.")] = 0,
    as_json: JsonOption = False,
) -> None:
    """Time to first token, and of each after it, through a stack of its own, against its engine's own."""
    wanted = dict.fromkeys(counts(streams, "--streams"), samples)
    result = asyncio.run(_overhead(load_config(), wanted, seed))
    if as_json:
        print_json(result)
        return
    table = Table(
        "streams", "samples", "engine p50", "stack p50", "overhead p50", "share", "engine p99", "stack p99", "a token"
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
    from benchmarks.overhead import OverheadBenchmark, ingest
    from benchmarks.workloads.corpus import SyntheticCorpus
    from services.app import connect_parts

    groups = 1 + sum(max(2, -(-wanted // streams)) * streams for streams, wanted in samples.items())
    corpus = SyntheticCorpus(groups, group_size=OVERHEAD_TOP_K, words=OVERHEAD_WORDS, seed=seed)
    with tempfile.TemporaryDirectory(prefix="ragtree-bench-") as folder, progress_bar() as progress:
        process = StackProcess(Path(folder), {"RAGTREE_SERVER__PORT": "0", "RAGTREE_GATEWAY__API_KEYS": "[]"})
        waiting = progress.add_task("starting a stack", total=None)
        running = process.start(wait_s=300)
        progress.remove_task(waiting)
        try:
            parts = connect_parts(config, running.ray_address)
            async with httpx.AsyncClient(base_url=running.url, timeout=600) as http:
                bar = progress.add_task("ingesting", total=None)
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
        finally:
            process.stop()
