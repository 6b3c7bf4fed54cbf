"""Options that several benchmarks share."""

import math
from pathlib import Path
from typing import Annotated

import typer

from protocol.plans import Reuse
from ragtree_lab.workloads.popularity import Popularity

DEFAULT_DEVICE = "a10g-7b"
DEFAULT_DATA = Path("../shared/data")

DataOption = Annotated[
    Path, typer.Option(envvar="RAGTREE_BENCH_DATA", help="Folder of question sets and traces.", show_default=True)
]

WorkloadOption = Annotated[str, typer.Option(help="Question set: a folder below --data.")]

DEFAULT_AGAINST = "vllm,vllm-prefix"

AgainstOption = Annotated[
    str,
    typer.Option(
        help="Baselines: vllm (no reuse), vllm-prefix (vLLM's own prefix cache), vllm-prefix-equal (the same, with as "
        "much memory as all our tiers in memory), vllm-lmcache (LMCache with as much host memory, if the package is "
        "installed); on a GPU also vllm-offload (vLLM's own offloading to as much)."
    ),
]

PartTokensOption = Annotated[
    int, typer.Option(min=16, help="Longest document, in tokens. A document is consecutive paragraphs of one article.")
]

REPLAY_TOP_K = 2

DEFAULT_PART_TOKENS = 1000

DEFAULT_QUESTIONS = 20_000

QuestionsOption = Annotated[int, typer.Option(min=1, help="Questions to retrieve documents for.")]

KvTokensOption = Annotated[
    int, typer.Option(min=64, help="KV cache of each engine, in tokens. The documents should exceed it several times.")
]

PopularityOption = Annotated[
    Popularity,
    typer.Option(
        help="documents: each question once, and the top 3 % of documents get 60 % of them; own: each question once, "
        "as often about a document as in the set; prompts: whole prompts repeat, with that skew."
    ),
]

TopKOption = Annotated[int, typer.Option(min=1, help="Documents per prompt.")]

DEFAULT_RATIOS = "0.125,0.25,0.5,1"

ReuseOption = Annotated[
    Reuse,
    typer.Option(
        help="Which KV our prompts may use: exact, only what was computed behind the same documents; composed, also "
        "what was computed elsewhere; auto, composed where that has passed its gate, which is run first if need be. "
        "The last two also run our system as ragtree-exact."
    ),
]

SearchRatioOption = Annotated[
    str, typer.Option(help="Shares of the index's lists that a search reads, one row of results each.")
]

SeedOption = Annotated[int, typer.Option(help="Random seed.")]


def numbers(given: str, option: str, most: float = math.inf, *, zero: bool = False) -> list[float]:
    """Parse positive numbers, or also ``zero``, separated by commas, none above ``most``. Empty text gives none.

    Raises typer.BadParameter.
    """
    try:
        parsed = [float(number) for number in given.split(",") if given]
    except ValueError:
        parsed = [-1.0]
    if not all((zero or number) and 0 <= number <= most and math.isfinite(number) for number in parsed):
        kind, bound = (
            "numbers from 0 up" if zero else "positive numbers",
            "" if most == math.inf else f" up to {most:g}",
        )
        raise typer.BadParameter(f"give {kind}{bound}, separated by commas", param_hint=option)
    return parsed


def counts(given: str, option: str) -> list[int]:
    """Parse at least one whole number from 1 up, separated by commas. Raises typer.BadParameter."""
    try:
        parsed = [int(count) for count in given.split(",")]
    except ValueError:
        parsed = [0]
    if min(parsed) < 1:
        raise typer.BadParameter("give numbers from 1 up, separated by commas", param_hint=option)
    return parsed
