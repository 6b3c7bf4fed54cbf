"""``ragtree bench tiers``: time to first token with KV in each tier.

Measures TTFT with the KV in GPU, host memory and on disk, and on a miss, and the bandwidth of loads. The baselines are
plain vLLM without cached KV ("plain") and with its own prefix cache ("floor"), and a plain memory copy and file read.

"disk" reads files that the operating system has in memory, "disk cold" reads them from the disk.

Limits: one request at a time, no scheduler, synthetic documents. A virtual disk may be cached by its host.
"""

import asyncio
from typing import Annotated

import typer
from rich.table import Table

from services.cli.connection import JsonOption
from services.cli.output import StepBars, print_json, results
from services.config import load_config


def tiers(
    documents: Annotated[int, typer.Option(min=1, help="Documents per prompt.")] = 2,
    document_tokens: Annotated[int, typer.Option(min=1, help="Tokens per document.")] = 1000,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds, each with new documents.")] = 10,
    as_json: JsonOption = False,
) -> None:
    """Compare time to first token with KV in GPU, host memory and on disk with vLLM's own cache and with none."""
    from generator.models import ModelStore
    from ragtree_lab.measuring.engines import ComparedEngines
    from ragtree_lab.tiers import TiersBenchmark

    config = load_config()
    engines = ComparedEngines(config.generator, ModelStore(config.cache_dir), at_once=2)
    with StepBars() as show:
        result = asyncio.run(TiersBenchmark(engines, documents, document_tokens, rounds).run(show))
    if as_json:
        print_json(result)
        return
    table = Table("prompt's KV", "TTFT p50", "TTFT p90", "against")
    against = {
        "gpu": f"{result.gpu_over_floor:.2f} x floor",
        "host": f"{result.host_over_floor:.2f} x floor",
        "disk": f"{result.disk_over_floor:.2f} x floor",
        "miss": f"{result.miss_over_plain:.2f} x plain",
    }
    if result.disk_cold_over_floor is not None:
        against["disk cold"] = f"{result.disk_cold_over_floor:.2f} x floor"
    for case, time_ms in result.ttft_ms.items():
        table.add_row(case, f"{time_ms:.1f} ms", f"{result.ttft_p90_ms[case]:.1f} ms", against.get(case, ""))
    results.print(table)
    cold = ""
    if result.disk_cold_bytes_per_s is not None:
        cold = f"; with a cold file cache {result.disk_cold_bytes_per_s / 1e9:.1f} GB/s"
    results.print(
        f"{result.prefix_tokens} tokens, {result.prefix_bytes / 1e6:.0f} MB of KV: "
        f"from host memory {result.host_bytes_per_s / 1e9:.1f} GB/s, {result.host_share_of_copy:.2f} of a plain copy; "
        f"from disk {result.disk_bytes_per_s / 1e9:.1f} GB/s, {result.disk_share_of_read:.2f} of a plain file read"
        f"{cold}",
        highlight=False,
    )
