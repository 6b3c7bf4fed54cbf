"""``ragtree bench graph``: whether searches with a graph find the documents that answer questions, and what it costs.

Measures recall@5 of documents and search time of dense and hybrid search, which are the baselines, and of modes mix
(``graph``), local and global; and size and reading time of the graph.

Unless ``--no-attention`` is given, it also measures attention over the paths of these graphs, with real engines: time
to first token and throughput of self-attention over all paths, of dependency attention over their trees, and of plain
vLLM, and what becomes of the answers. Throughput is that of several prompts at once, and, unless ``--no-slo`` is given,
the highest rate of arrivals at which first tokens come in time.

Limits: sets with documents and with questions whose passages are known, in English. Where a set does not name them, a
passage counts as gold if it is among the question's own contexts and contains one of its answers.
"""

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer
from msgspec.structs import astuple
from rich.table import Table

from ragtree_lab.commands.common.options import DEFAULT_DATA, DataOption
from services.cli.connection import JsonOption
from services.cli.output import StepBars, print_json, results
from services.config import load_config

if TYPE_CHECKING:
    from ragtree_lab.graph.attention.results import Slo
    from ragtree_lab.graph.benchmark import GraphResult

_CONTEXT_TOKENS = (1000, 2000, 4000)

_GOLD = (
    "gold: the set names the passages (given), or they are those of the question's own contexts that contain one of "
    "its answers as whole words (answer)"
)


def graph(
    chosen: Annotated[
        list[str] | None,
        typer.Option("--set", help="Question set: a folder below --data. Can be given several times; by default all."),
    ] = None,
    questions: Annotated[int, typer.Option(min=1, help="Most questions per set, at equal distances in it.")] = 300,
    context_tokens: Annotated[
        list[int] | None,
        typer.Option(
            min=100,
            help="Tokens of paths in a prompt. Can be given several times; by default 1000, 2000 and 4000.",
        ),
    ] = None,
    attention: Annotated[
        bool, typer.Option("--attention/--no-attention", help="Measure attention over paths, with real engines.")
    ] = True,
    slo: Annotated[
        bool,
        typer.Option(
            "--slo/--no-slo",
            help="Measure throughput at the SLO: the highest rate of arrivals at which first tokens come within 5 "
            "times the time that they take in an idle vLLM. Takes 4 minutes with 1000 tokens. Needs 240 questions.",
        ),
    ] = True,
    answers: Annotated[
        int,
        typer.Option(min=0, help="Questions of each set and each number of tokens whose answers are compared."),
    ] = 16,
    data: DataOption = DEFAULT_DATA,
    as_json: JsonOption = False,
) -> None:
    """Compare searches with a graph with dense and hybrid search, and measure the graph."""
    from ragtree_lab.graph.attention.benchmark import AttentionBenchmark
    from ragtree_lab.graph.attention.slo_throughput import Ladder, SloThroughput
    from ragtree_lab.graph.benchmark import GraphBenchmark

    config = load_config()
    with StepBars() as show:
        at_slo = SloThroughput(Ladder(), show) if slo else None
        over_paths = None
        if attention:
            over_paths = AttentionBenchmark.over(config.generator, config.cache_dir, at_slo, answers, show)
        benchmark = GraphBenchmark(config.retriever, over_paths, show)
        result = asyncio.run(benchmark.run(data, chosen or (), questions, context_tokens or _CONTEXT_TOKENS))
    if as_json:
        print_json(result)
        return
    _show(result)


def _show(result: "GraphResult") -> None:
    from ragtree_lab.graph.benchmark import WAYS

    found = _table("recall@5", "set", "gold", "questions", *WAYS)
    found.caption = _GOLD
    took = _table("median search time, ms", "set", *WAYS)
    read = _table(
        "graph", "set", "documents", "chunks", "entities", "statements", "relations", "seconds", "documents/min", "MiB"
    )
    for name, index in result.index.items():
        recalled = (f"{recall:.3f}" for recall in astuple(result.recall_at_5[name]))
        found.add_row(name, result.gold[name], str(result.questions[name]), *recalled)
        took.add_row(name, *(f"{ms:.1f}" for ms in astuple(result.search_ms[name])))
        counts = (index.documents, index.chunks, index.entities, index.statements, index.relations)
        speed = (f"{index.seconds:.1f}", f"{index.documents_per_minute:,.0f}", f"{index.bytes / 2**20:.1f}")
        read.add_row(name, *(f"{count:,}" for count in counts), *speed)
    for table in (found, took, read):
        results.print(table)
    for name, reason in result.left_out.items():
        results.print(f"{name} is left out: {reason}", highlight=False)
    if result.attention:
        _show_attention(result)


def _show_attention(result: "GraphResult") -> None:
    from ragtree_lab.graph.attention.ways import WAYS

    times = _table("time to first token, ms", "set", "prompts", "tokens of paths", "in trees", "found", *WAYS)
    times.caption = "found: the share of the trees' tokens whose KV earlier questions had"
    for row in result.attention:
        counts = (f"{row.prompts}", f"{row.context_tokens:,.0f}", f"{row.tree_tokens:,.0f}", f"{row.hit_share:.0%}")
        times.add_row(row.set, *counts, *(f"{row.ttft_ms[way]:,.0f}" for way in WAYS))
    rates = _table("prompts a second, several at once", "", *WAYS)
    rates.add_row("rate", *(f"{result.throughput[way]:.2f}" for way in WAYS))
    rates.add_row("dependency_cached over it", *(f"{result.throughput_ratio.get(way, 1):.2f}" for way in WAYS))
    answers = _table(
        "answers beside self-attention",
        *("set", "tokens", "way", "questions", "first token", "KL", "F1", "self-attention's F1"),
    )
    for one in result.quality:
        figures = (f"{one.first_token_agreement:.0%}", f"{one.kl:.3f}", f"{one.f1:.3f}", f"{one.full_f1:.3f}")
        answers.add_row(one.set, f"{one.tokens:,}", one.way, str(one.questions), *figures)
    at_slo = [] if result.slo is None else [_at_slo(result, result.slo)]
    for table in (times, rates, *at_slo, answers):
        results.print(table)
    if result.no_slo:
        results.print(f"throughput at the SLO is not measured: {result.no_slo}", highlight=False)
    for baseline, ratio in result.ttft_ratio.items():
        results.print(f"TTFT, {baseline}: {ratio:.2f}", highlight=False)


def _at_slo(result: "GraphResult", slo: "Slo") -> Table:
    rates = _table("highest sustained arrivals a second", "", *slo.rates)
    bound = f"first tokens within {slo.ttft_ms_bound:,.0f} ms, 5 times the SLO"
    rates.caption = f"{slo.set}: {bound}; {slo.prompts} prompts at each rate"
    for name, by_way in (
        ("rate", result.throughput_at_slo),
        ("dependency_cached over it", result.throughput_at_slo_ratio),
    ):
        rates.add_row(name, *(f"{by_way[way]:.2f}" if way in by_way else "-" for way in slo.rates))
    return rates


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, box=None)
    for column in columns:
        table.add_column(column, justify="left" if column in ("", "set", "gold", "way") else "right")
    return table
