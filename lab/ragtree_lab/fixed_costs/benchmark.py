"""Fixed costs: what a request costs besides computing, with a model that computes next to nothing.

On a GPU a prefill is short, and what is left decides. A model of 8 layers of 128, with random weights and the shipped
tokenizer, shows that on a CPU.

1. Loads, with synchronous and asynchronous scheduling: TTFT with a prefix in each tier, above the same prefix in vLLM's
   own cache.
2. The stack: what HTTP, search, layout, admission and Serve add to the engine's own TTFT and to each later token.
3. Saturation: the same prompts over HTTP, to the stack and to ``vllm serve``. Both have answered each prompt before, so
   that both have its KV.

Limits: synthetic documents, one machine, whose cores the servers share with their clients.
"""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import msgspec

from examine.measuring import Progress
from generator.models import ModelStore
from generator.settings import GeneratorSettings
from loadtest.traffic.synthetic_corpus import SyntheticCorpus
from protocol.prompts import Prompt
from protocol.tiers import Tier
from ragtree_lab.fixed_costs.load_costs import LENGTHS, TIERS, LoadCosts
from ragtree_lab.fixed_costs.saturation import ANSWER_TOKENS, Ask, Served, asks_stack, asks_vllm, served
from ragtree_lab.fixed_costs.vllm_server import vllm_server
from ragtree_lab.measuring.engines import ComparedEngines
from ragtree_lab.overhead import OverheadBenchmark, OverheadRow, ingest, questions_of

SHAPE: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 8192,
}
"""The model that computes next to nothing."""
MANY = 16
"""Concurrent streams."""
COLLECTION = "bench-fixed-costs"
TOP_K = 4
DECODED_TOKENS = 33
"""Tokens per answer where later tokens are timed: the first one, and enough others for a mean."""
_WORDS = 40
_SEED = 0
_STEPS = {"sync": False, "async": True}


class Sizes(msgspec.Struct, frozen=True):
    """How much to measure: ``rounds`` of loads, ``samples`` of the stack's overhead, ``prompts`` and their ``turns``.

    At saturation, each prompt is asked ``turns`` times, and before that once.
    """

    rounds: int
    samples: int
    prompts: int
    turns: int


class FixedCosts(msgspec.Struct, frozen=True):
    """Medians in milliseconds.

    - ``load_ms``: by scheduler, tier and length of the prefix, what a load takes above vLLM's own cache, ``floor_ms``.
    - ``stack_ms``, ``stack_ms_16``: what the stack adds to the engine's own TTFT, at one stream and at 16.
      ``per_token_ms_16``: what it adds to each later token.
    - ``requests_per_s``: at 16 streams, by server. ``cached_share`` is what each has found of its prompts.
    - ``ttft_ratio``: mean TTFT over HTTP, the stack's over that of ``vllm serve``, at one stream and at 16.
    """

    load_ms: dict[str, dict[str, dict[int, float]]]
    floor_ms: dict[str, dict[int, float]]
    stack_ms: float
    stack_ms_16: float
    per_token_ms_16: float | None
    requests_per_s: dict[str, float]
    cached_share: dict[str, float]
    ttft_ratio: dict[str, float]


async def load_costs(
    engines: ComparedEngines, rounds: int, progress: Progress
) -> tuple[dict[str, dict[str, dict[int, float]]], dict[str, dict[int, float]]]:
    """Return what loads take above vLLM's own cache, and what that takes itself. Raises what the engines raise."""
    load_ms: dict[str, dict[str, dict[int, float]]] = {}
    floor_ms: dict[str, dict[int, float]] = {}
    costs = LoadCosts(engines, LENGTHS, rounds)
    for scheduler, is_async in _STEPS.items():
        took = await costs.run(is_async, progress)
        load_ms[scheduler] = {
            Tier(tier).value: {length: cases[tier] for length, cases in took.items()} for tier in TIERS
        }
        floor_ms[scheduler] = {length: cases["floor"] for length, cases in took.items()}
    return load_ms, floor_ms


class StackCosts:
    """Measures a running stack over ``http``: what it adds to its engine, and how many requests it serves."""

    def __init__(self, http: httpx.AsyncClient, overhead: OverheadBenchmark, sizes: Sizes) -> None:
        self._http = http
        self._overhead = overhead
        self._sizes = sizes
        self._rows = {1: sizes.samples, MANY: sizes.samples * 2}
        topics = questions_of(self._rows) + sizes.prompts
        self._corpus = SyntheticCorpus(topics * TOP_K, _WORDS, _SEED, per_topic=TOP_K)
        self.questions = self._corpus.questions[-sizes.prompts :]

    async def prepare(self) -> list[Prompt]:
        """Ingest the documents. Returns the prompts of the questions for saturation."""
        await ingest(self._http, COLLECTION, self._corpus)
        return [await self._overhead.prompt(question, ANSWER_TOKENS) for question in self.questions]

    async def overhead(self, progress: Progress) -> dict[str, OverheadRow]:
        """Return what the stack adds, by the number of streams."""
        total = sum(self._rows.values())
        done = 0

        def advance(streams: int) -> None:
            nonlocal done
            done += streams
            progress("the stack", min(done, total), total)

        return (await self._overhead.run(self._rows, self._corpus, advance)).by_streams

    async def saturation(self, progress: Progress) -> dict[int, Served]:
        """Return what the stack serves, by the number of streams."""
        ask = asks_stack(self._http, COLLECTION, self.questions, TOP_K)
        return await _saturation(ask, self._sizes, lambda done, total: progress("the stack, saturated", done, total))


async def vllm_saturation(
    settings: GeneratorSettings, models: ModelStore, prompts: list[Prompt], sizes: Sizes, progress: Progress
) -> dict[int, Served]:
    """Return what ``vllm serve`` serves with the same prompts, by the number of streams. Raises EngineDied."""
    with tempfile.TemporaryDirectory(prefix="ragtree-bench-") as folder:
        async with vllm_server(settings, models, Path(folder) / "log") as http:
            ask = asks_vllm(http, settings.model, prompts)
            return await _saturation(ask, sizes, lambda done, total: progress("vllm serve", done, total))


async def _saturation(ask: Ask, sizes: Sizes, progress: Callable[[int, int], None]) -> dict[int, Served]:
    """Return what a server serves, by the number of streams, once it has answered each prompt."""
    numbers = range(sizes.prompts)
    total = sizes.prompts * (2 + sizes.turns)
    await served(ask, numbers, MANY)
    progress(sizes.prompts, total)
    alone = await served(ask, numbers, 1)
    progress(2 * sizes.prompts, total)
    many = await served(ask, list(numbers) * sizes.turns, MANY)
    progress(total, total)
    return {1: alone, MANY: many}


def fixed_costs(
    loads: tuple[dict[str, dict[str, dict[int, float]]], dict[str, dict[int, float]]],
    overhead: dict[str, OverheadRow],
    ours: dict[int, Served],
    vllm: dict[int, Served],
) -> FixedCosts:
    """Join what was measured."""
    load_ms, floor_ms = loads
    both = {"ragtree": ours[MANY], "vllm_prefix": vllm[MANY]}
    return FixedCosts(
        load_ms=load_ms,
        floor_ms=floor_ms,
        stack_ms=overhead["1"].p50_overhead_ms,
        stack_ms_16=overhead[str(MANY)].p50_overhead_ms,
        per_token_ms_16=overhead[str(MANY)].per_token_overhead_ms,
        requests_per_s={name: each.requests_per_s for name, each in both.items()},
        cached_share={name: each.cached_share for name, each in both.items()},
        ttft_ratio={
            "one": ours[1].ttft_ms / vllm[1].ttft_ms,
            "load": ours[MANY].ttft_ms / vllm[MANY].ttft_ms,
        },
    )
