"""``ragtree bench replay``: the stack against plain vLLM under load.

Measures TTFT, and the highest rate that is sustained, on real questions with really retrieved documents. The baselines
are plain vLLM without reuse, vLLM with its own prefix cache, and the same with as much memory as ours; each in vLLM's
default settings and in those of our engine, of which the better counts. Files of KV are read from the disk itself.

Limits: the parts run in one process, without HTTP. Ratios depend on the model, the document lengths and the cache
sizes.
"""

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import msgspec
import typer
from rich.table import Table

from protocol.plans import DocumentOrder, Reuse
from ragtree_lab.commands.common.gate_first import gate_of
from ragtree_lab.commands.common.options import (
    DEFAULT_DATA,
    DEFAULT_PART_TOKENS,
    DEFAULT_QUESTIONS,
    REPLAY_TOP_K,
    AgainstOption,
    DataOption,
    KvTokensOption,
    PartTokensOption,
    PopularityOption,
    QuestionsOption,
    ReuseOption,
    SeedOption,
    TopKOption,
)
from ragtree_lab.workloads.popularity import Popularity
from services.cli.connection import JsonOption
from services.cli.output import StepBars, print_json, results
from services.config import load_config

if TYPE_CHECKING:
    from ragtree_lab.measuring.phases import Measured
    from ragtree_lab.replay.results import ReplayResult, SystemResult
    from ragtree_lab.workloads.prompt_streams import PromptStream


_LEAST = 8
"""Fewer requests or answer tokens than this say nothing."""


class _Size(NamedTuple):
    """By how much the workload is smaller.

    ``articles`` divides the corpus, the questions and the memory of the tiers below the GPU, ``length`` the tokens of
    documents and answers, ``cache`` those of an engine's KV cache; ``warm_up``, ``unloaded``, ``at_once``, ``requests``
    and ``seconds`` divide the options of these names.
    """

    articles: int = 1
    length: int = 1
    cache: int = 1
    warm_up: int = 1
    unloaded: int = 1
    at_once: int = 1
    requests: int = 1
    seconds: int = 1


_FULL = _Size()
# Documents keep enough questions to be popular, although each question is asked once. An engine's KV cache also has to
# hold several requests.
_QUICK = _Size(articles=4, length=2, cache=2, warm_up=3, unloaded=4, at_once=4, requests=5, seconds=10)


def replay(
    workload: Annotated[
        str,
        typer.Option(
            help="Question set: a folder below --data; or ragpulse: a trace's own arrivals, passages and lengths."
        ),
    ] = "squad",
    popularity: PopularityOption = Popularity.DOCUMENTS,
    against: AgainstOption = "vllm,vllm-prefix,vllm-prefix-equal",
    quick: Annotated[
        bool,
        typer.Option(
            "--quick",
            help="A quarter of the articles, documents and answers of half the length, less memory to match, fewer "
            "requests, rates 30 % apart, and baselines in vLLM's default settings alone.",
        ),
    ] = False,
    requests: Annotated[int, typer.Option(min=8, help="Least requests per rate.")] = 200,
    seconds: Annotated[float, typer.Option(min=0, help="Least seconds per rate.")] = 300,
    warm_up: Annotated[
        int,
        typer.Option(min=8, help="Most questions before measuring; they end when their documents fill all our tiers."),
    ] = 2000,
    unloaded: Annotated[int, typer.Option(min=8, help="Questions asked one after another.")] = 64,
    at_once: Annotated[int, typer.Option(min=8, help="Questions asked all at once.")] = 32,
    stream: Annotated[
        int | None,
        typer.Option(min=32, help="Questions in all, each asked once; by default as many as the popularity allows."),
    ] = None,
    answer_tokens: Annotated[int, typer.Option(min=4, help="Tokens of each answer.")] = 32,
    kv_tokens: KvTokensOption = 23_296,
    host_gib: Annotated[float, typer.Option(min=0, help="Our host memory for KV, in GiB.")] = 1.0,
    disk_gib: Annotated[
        float,
        typer.Option(
            min=0,
            help="Most disk space for our KV, in GiB. Less is used if the stream's documents would not be twice as "
            "large as all tiers.",
        ),
    ] = 32.0,
    questions: QuestionsOption = DEFAULT_QUESTIONS,
    text_from: Annotated[str, typer.Option(help="Question set whose text a trace's prompts get.")] = "squad",
    part_tokens: PartTokensOption = DEFAULT_PART_TOKENS,
    top_k: TopKOption = REPLAY_TOP_K,
    order: Annotated[
        DocumentOrder, typer.Option(help="Order of the documents in our prompts; the baselines have retrieval order.")
    ] = DocumentOrder.RETRIEVAL,
    reuse: ReuseOption = Reuse.EXACT,
    plot: Annotated[
        Path | None, typer.Option(help="Draw TTFT by offered rate and token hit rates by tier into this picture.")
    ] = None,
    seed: SeedOption = 0,
    data: DataOption = DEFAULT_DATA,
    as_json: JsonOption = False,
) -> None:
    """Compare TTFT and sustained rates with plain vLLM, with and without its prefix cache. Ctrl-C keeps results."""
    from cachectl.runtime.composing import GateFolder
    from generator.models import ModelStore
    from ragtree_lab.commands.common.prompts import prompt_stream, retrieved_prompts, trace_stream
    from ragtree_lab.measuring.baselines import Steps, check_baselines
    from ragtree_lab.measuring.engines import ComparedEngines
    from ragtree_lab.measuring.systems import Systems
    from ragtree_lab.replay.benchmark import ReplayBenchmark, ReplaySettings
    from ragtree_lab.workloads.by_name import TRACES

    baselines = [name.strip() for name in against.split(",")]
    check_baselines(baselines)
    config = load_config()
    size = _QUICK if quick else _FULL
    settings = ReplaySettings(
        warm_up=max(_LEAST, warm_up // size.warm_up),
        unloaded=max(_LEAST, unloaded // size.unloaded),
        at_once=max(_LEAST, at_once // size.at_once),
        requests=max(_LEAST, requests // size.requests),
        seconds=seconds / size.seconds,
        answer_tokens=max(_LEAST, answer_tokens // size.length),
        stride=2 if quick else 1,
        baseline_steps=(Steps.DEFAULT,) if quick else tuple(Steps),
        order=order,
        reuse=reuse,
    )
    engines = ComparedEngines(
        config.generator,
        ModelStore(config.cache_dir),
        at_once=len(settings.baseline_steps) * len(baselines) + (1 if reuse is Reuse.EXACT else 2),
        kv_tokens=kv_tokens // size.cache,
    )
    systems = Systems(
        engines,
        config.controller,
        config.cache_dir / "profiles",
        GateFolder(config.cache_dir),
        host_gib=host_gib / size.articles,
        disk_gib=disk_gib / size.articles,
        file_cache=False,
    )
    with StepBars() as show:
        gate = (
            gate_of(config, data, text_from if workload in TRACES else workload, seed, show)
            if reuse is Reuse.AUTO
            else None
        )
        source: PromptStream
        if workload in TRACES:
            source = trace_stream(config, data, workload, text_from, settings.answer_tokens, show)
        else:
            prompts = retrieved_prompts(
                config,
                data,
                workload,
                questions // size.articles,
                part_tokens // size.length,
                top_k,
                seed,
                show,
                max_tokens=settings.answer_tokens,
                popular_first=popularity is Popularity.DOCUMENTS,
                one_in=size.articles,
            )
            source = prompt_stream(prompts, popularity, stream, seed)
        benchmark = ReplayBenchmark(systems, baselines, source, settings, show)
        complete = False
        try:
            asyncio.run(benchmark.run())
            complete = True
        finally:
            # An interrupted run keeps what it has measured.
            if benchmark.has_results:
                _show(msgspec.structs.replace(benchmark.result(complete=complete), gate=gate), plot, as_json)


def _show(result: "ReplayResult", plot: Path | None, as_json: bool) -> None:
    if plot is not None:
        from ragtree_lab.replay.plot import draw

        draw(result, plot)
    if as_json:
        print_json(result)
        return
    results.print(_table(result))
    for name, ratio in result.ttft_ratio_unloaded.items():
        loaded = result.ttft_ratio.get(name)
        throughput = result.throughput_ratio.get(name)
        results.print(
            f"against {name}: mean TTFT {ratio:.2f} x lower unloaded"
            + (f", {loaded:.2f} x at the highest rate that both sustain" if loaded else "")
            + (f"; sustained rate {throughput:.2f} x higher" if throughput else ""),
            highlight=False,
        )
    by_tier = ", ".join(f"{share:.0%} from {tier}" for tier, share in result.token_hit_rate.items())
    results.print(
        f"{result.new_path_share:.0%} of the prompts had documents in a new sequence; of our prompt tokens {by_tier}",
        highlight=False,
    )
    if not result.complete:
        results.print("The run was ended before everything was measured.")
    if plot is not None:
        results.print(f"plotted into {plot}", highlight=False)


def _table(result: "ReplayResult") -> Table:
    table = Table("system", "rate", "served", "mean TTFT", "p99 TTFT", "tokens cached", "sustained")
    for name, system in result.systems.items():
        for title, sustained, row in _rows(system):
            table.add_row(
                name,
                title,
                f"{row.served_per_s:.3g}/s",
                f"{row.mean_ttft_ms:.0f} ms",
                f"{row.p99_ttft_ms:.0f} ms",
                f"{row.token_hit_rate:.0%}",
                sustained,
            )
    return table


def _rows(system: "SystemResult") -> "list[tuple[str, str, Measured]]":
    rows = [("unloaded", "", system.unloaded), ("all at once", "", system.at_once)]
    for row in system.loaded:
        sustained = system.sustained_per_s is not None and (row.rate or 0) <= system.sustained_per_s
        rows.append((f"{row.rate:g}/s", "yes" if sustained else "no", row))
    return rows
