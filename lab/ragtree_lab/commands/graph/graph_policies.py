"""``ragtree bench graph-policies``: replacement policies and request orders for the KV of graphs' facts.

Measures how many tokens of facts are found in a cache of branches, over streams of real questions with drawn
popularity: each once and then any (``uniform``), in sessions about one entity (``temporal``), and by Zipf's law over
entities (``zipf``). The baselines are LRU, and first come, first served. BELADY knows the whole stream.

Limits: a simulation of one cache with the policies that serve. No model runs, and one prompt is served at a time.
"""

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from cachectl.costs.device_profile import DeviceProfile
from ragtree_lab.commands.common.options import DEFAULT_DATA, DEFAULT_DEVICE, DataOption, numbers
from services.cli.connection import JsonOption
from services.cli.output import StepBars, print_json, results
from services.config import load_config

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ragtree_lab.graph.facts import Facts
    from ragtree_lab.graph.facts_reader import FactsReader
    from ragtree_lab.graph.policies.rows import GraphPoliciesResult, StreamRow
    from ragtree_lab.graph.sets import GraphSet


def graph_policies(
    sets: Annotated[str, typer.Option(help="Question sets: folders below --data, separated by commas.")] = (
        "dragonball,rgb"
    ),
    questions: Annotated[int, typer.Option(min=1, help="Most questions per set, at equal distances in it.")] = 300,
    context_tokens: Annotated[int, typer.Option(min=10, help="Most tokens of a prompt's paths in full.")] = 2000,
    sizes: Annotated[
        str, typer.Option(help="Sizes of the cache, as shares of a stream's distinct tokens, separated by commas.")
    ] = "0.05,0.2,0.5",
    waiting: Annotated[
        str, typer.Option(help="Numbers of prompts that wait while one is served, separated by commas.")
    ] = "0,8,32",
    policies: Annotated[str, typer.Option(help="Policies in order of arrival, separated by commas.")] = (
        "LRU,LFU,PGDSF,LACR,LACR-NORMALISED,FORESIGHT,BELADY"
    ),
    seeds: Annotated[int, typer.Option(min=1, help="Streams of each kind.")] = 5,
    data: DataOption = DEFAULT_DATA,
    as_json: JsonOption = False,
) -> None:
    """Compare replacement policies and request orders for the KV of graphs' facts, in a simulation."""
    from generator.engines.factory import GeneratorFactory
    from generator.models import ModelStore
    from ragtree_lab.graph.facts_reader import FactsReader
    from ragtree_lab.graph.found_facts import MOST_PATHS
    from ragtree_lab.graph.policies.benchmark import Compared, GraphPolicyBenchmark
    from ragtree_lab.graph.sets import english_set

    names = _names(sets, "--sets")
    compared = Compared(_names(policies, "--policies"), sizes=_shares(sizes), waiting=_counts(waiting), seeds=seeds)
    config = load_config()
    encode = GeneratorFactory(config.generator, ModelStore(config.cache_dir)).tokenizer().encode
    with StepBars() as show:
        cost = DeviceProfile.shipped(DEFAULT_DEVICE).prefill_seconds
        benchmark = GraphPolicyBenchmark(compared, cost, show)
        reader = FactsReader(config.retriever, MOST_PATHS, show)
        facts = asyncio.run(_facts(reader, [english_set(data, name) for name in names], questions))
        result = benchmark.run(facts, context_tokens, encode)
    if as_json:
        print_json(result)
        return
    _show(result)


async def _facts(reader: "FactsReader", sets: "Sequence[GraphSet]", questions: int) -> "dict[str, list[Facts]]":
    return {each.name: await reader.read(each, each.evenly(questions)) for each in sets}


def _names(given: str, option: str) -> list[str]:
    names = list(dict.fromkeys(name.strip() for name in given.split(",") if name.strip()))
    if not names:
        raise typer.BadParameter("give at least one name", param_hint=option)
    return names


def _shares(given: str) -> list[float]:
    shares = numbers(given, "--sizes", 1.0)
    if not shares:
        raise typer.BadParameter("give at least one share", param_hint="--sizes")
    return shares


def _counts(given: str) -> list[int]:
    found = numbers(given, "--waiting", zero=True)
    if not found or not all(number.is_integer() for number in found):
        raise typer.BadParameter("give whole numbers, separated by commas", param_hint="--waiting")
    return [int(number) for number in found]


def _show(result: "GraphPoliciesResult") -> None:
    for name, facts in result.sets.items():
        results.print(
            f"{name}: {facts.prompts:,} prompts of {facts.tree_tokens:,.0f} tokens in trees, of which "
            f"{facts.distinct_tokens:,} are distinct",
            highlight=False,
        )
    for title, rows, name_of in (
        ("token hit rates by policy, first come, first served", result.policies, lambda row: row.policy),
        ("token hit rates by order", result.orders, lambda row: f"{row.policy} {row.order}"),
    ):
        results.print(_table(title, rows, name_of))
    for mean in result.means:
        over = ", ".join(f"{ratio:.3f} of {name}" for name, ratio in mean.lacr_over.items())
        results.print(f"{mean.waiting} waiting: LACR's mean token hit rate is {over}", highlight=False)


def _table(title: str, rows: "Sequence[StreamRow]", name_of: "Callable[[StreamRow], str]") -> Table:
    """A line for each stream, size and number of waiting prompts, and a column for each policy or order."""
    names = list(dict.fromkeys(map(name_of, rows)))
    table = Table("set", "stream", "cache", "waiting", *names, title=title, box=None)
    cells: dict[tuple[str, str, str, str], list[str]] = {}
    for row in rows:
        cell = (row.set, row.stream, f"{row.cache_share:.0%}", str(row.waiting))
        half = (row.interval[1] - row.interval[0]) / 2
        cells.setdefault(cell, []).append(f"{row.token_hit_rate:.3f} ± {half:.3f}")
    for cell, rates in cells.items():
        table.add_row(*cell, *rates)
    return table
