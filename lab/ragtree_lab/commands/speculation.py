"""``ragtree bench speculation``: the gain of generating on provisional documents.

Measures non-overlapped search time, in our count and in RAGCache's strict one, and TTFT with speculation on. The
baseline is the same stack with speculation off, question by question.

Limits: synthetic vectors and documents, in the regime of RAGCache, section 7.3 (long, up to exhaustive searches). The
fake engine has the speed of a 7B model on an A10G; its figures are simulated, not measured on a GPU.
"""

import asyncio
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from protocol.plans import DocumentOrder
from ragtree_lab.commands.common.options import DEFAULT_RATIOS, SearchRatioOption, SeedOption, numbers
from services.cli.connection import JsonOption
from services.cli.output import StepBars, print_json, results
from services.config import Config, load_config

if TYPE_CHECKING:
    from examine.measuring import Progress
    from ragtree_lab.speculation import SpeculationResult, SpeculationSettings


def speculation(
    search_ratio: SearchRatioOption = DEFAULT_RATIOS,
    engines: Annotated[
        str, typer.Option(help="vllm: a real engine; fake: no model, at the speed of a 7B model on an A10G.")
    ] = "vllm,fake",
    rates: Annotated[
        str, typer.Option(help="Questions per second to sweep, far into overload; may be empty.")
    ] = "1,2,3,4,5,6",
    sweep_engines: Annotated[str, typer.Option(help="Engines that get the sweep.")] = "fake",
    sweep_ratio: Annotated[
        float, typer.Option(min=0.001, max=1, help="Share of the lists that a search reads in the sweep.")
    ] = 0.125,
    sweep_questions: Annotated[int, typer.Option(min=2, help="Questions per rate and mode.")] = 100,
    vectors: Annotated[int, typer.Option(min=1000, help="Documents to search, one vector each.")] = 300_000,
    dim: Annotated[int, typer.Option(min=8, help="Dimension of the vectors.")] = 1536,
    nlist: Annotated[int, typer.Option(min=1, help="Lists of the IVF index.")] = 1024,
    top_k: Annotated[int, typer.Option(min=1, help="Documents per prompt.")] = 5,
    words: Annotated[int, typer.Option(min=1, help="Synthetic words per document.")] = 60,
    questions: Annotated[int, typer.Option(min=2, help="Questions per row; each is asked in both modes.")] = 40,
    order: Annotated[
        DocumentOrder, typer.Option(help="Order of a prompt's documents; cached-first reuses most of wrong guesses.")
    ] = DocumentOrder.RETRIEVAL,
    max_tokens: Annotated[int, typer.Option(min=1, help="Tokens per answer.")] = 4,
    seed: SeedOption = 0,
    as_json: JsonOption = False,
) -> None:
    """Compare non-overlapped search time and TTFT with speculation off and on. Keeps an index of several GB."""
    from ragtree_lab.speculation import SpeculationReport, SpeculationSettings

    config = load_config()
    settings = SpeculationSettings(
        vectors=vectors,
        dimension=dim,
        lists=nlist,
        top_k=top_k,
        words=words,
        questions=questions,
        max_tokens=max_tokens,
        seed=seed,
        sweep_questions=sweep_questions,
        order=order,
    )
    named, to_sweep = _engines(engines, "--engines"), _engines(sweep_engines, "--sweep-engines")
    ratios, swept = numbers(search_ratio, "--search-ratio", most=1), numbers(rates, "--rates")
    with StepBars() as show:
        rates_of = {name: swept if name in to_sweep else [] for name in named}
        measured = asyncio.run(_measure(config, settings, rates_of, ratios, sweep_ratio, show))
    if as_json:
        first = next(iter(measured.values()))
        print_json(SpeculationReport(first.engine, first.rows, measured))
        return
    for name, result in measured.items():
        _show(name, result)


def _engines(given: str, option: str) -> list[str]:
    named = [name.strip() for name in given.split(",")]
    if not set(named) <= {"vllm", "fake"}:
        raise typer.BadParameter("the engines are vllm and fake", param_hint=option)
    return named


async def _measure(
    config: Config,
    settings: "SpeculationSettings",
    rates: dict[str, list[float]],
    ratios: list[float],
    sweep_ratio: float,
    progress: "Progress",
) -> "dict[str, SpeculationResult]":
    """Return each engine's result by name; ``rates`` has the rates to sweep on each."""
    from generator.engines.factory import GeneratorFactory
    from generator.models import ModelStore
    from ragtree_lab.speculation import SpeculationBenchmark

    name = f"speculation-{settings.vectors}x{settings.dimension}-{settings.words}-{settings.seed}"
    benchmark = SpeculationBenchmark(
        settings, config.cache_dir / "bench" / name, config.cache_dir / "profiles", progress
    )
    await benchmark.prepare()
    measured: dict[str, SpeculationResult] = {}
    for kind, swept in rates.items():
        with tempfile.TemporaryDirectory(prefix="ragtree-bench-") as folder:
            kv = config.generator.kv.model_copy(update={"disk_dir": Path(folder), "object_store": None})
            generator = config.generator.model_copy(update={"engine": kind, "kv": kv})
            factory = GeneratorFactory(generator, ModelStore(config.cache_dir))
            engine = factory.engine()
            await engine.start()
            try:
                measured[kind] = await benchmark.run(engine, factory.layout(), ratios, swept, sweep_ratio)
            finally:
                await engine.close()
                kv.discard_host_memory()
    return measured


def _show(name: str, result: "SpeculationResult") -> None:
    label = "real engine" if name == "vllm" else "FAKE engine, at the speed of a GPU"
    results.print(
        f"{label}: {result.vectors:,} vectors of {result.dimension}, prompts of {result.prompt_tokens:.0f} tokens",
        highlight=False,
    )
    # Without speculation, all of the search is not overlapped.
    table = Table(
        "ratio",
        "search",
        "not overlapped",
        "times less",
        "strictly",
        "times less",
        "TTFT: off",
        "on",
        "times less",
        "wasted",
    )
    for row in result.rows:
        table.add_row(
            f"{row.search_ratio:g}",
            f"{row.search_ms:.0f} ms",
            f"{row.non_overlapped_ms.on:.0f} ms",
            f"{row.non_overlapped_ratio:.2f}",
            f"{row.strict_non_overlapped_ms.on:.0f} ms",
            f"{row.strict_non_overlapped_ratio:.2f}",
            f"{row.ttft_ms.off:.0f} ms",
            f"{row.ttft_ms.on:.0f} ms",
            f"{row.ttft_ratio:.2f}",
            f"{row.wasted_prefill_tokens:.0f} tokens",
        )
    results.print(table)
    if not result.sweep:
        return
    table = Table("rate", "mean TTFT: off", "on", "p99: off", "on", "p99 on / off", "speculated", "confirmed")
    for swept in result.sweep:
        table.add_row(
            f"{swept.rate:g}/s",
            f"{swept.mean_ttft_ms.off:.0f} ms",
            f"{swept.mean_ttft_ms.on:.0f} ms",
            f"{swept.p99_ttft_ms.off:.0f} ms",
            f"{swept.p99_ttft_ms.on:.0f} ms",
            f"{swept.p99_on_over_off:.2f}",
            f"{swept.speculated:.0%}",
            f"{swept.confirmed:.0%}",
        )
    results.print(table)
