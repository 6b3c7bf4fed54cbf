"""Queries a second of two machines that read each other's KV, against two that keep theirs to themselves.

Every query is new, and documents come again as often as in a question set: half of all queries concern a small part of
the documents. The ways to serve them take turns, each with engines of its own:

- ``alone``: a stack on each machine, and queries go to them in turn, as a load balancer sends them.
- ``routed``: one stack, whose controller sends a query where its documents are, and whose machines read nothing of
  each other.
- ``shared``: the same, and machines read each other's KV.
- ``one``: one machine without the other.
- ``generator``: one machine answers, and the other one is a KV generator for the queries that wait for it.
"""

import asyncio
import random
import time
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from itertools import cycle
from pathlib import Path
from statistics import mean
from tempfile import TemporaryDirectory
from typing import NamedTuple

import msgspec

from benchmarks.measuring.engines import EngineMaker, Generation
from benchmarks.measuring.kv_paths import QUESTION_TOKENS, random_segment
from benchmarks.measuring.local_stack import LocalStack
from benchmarks.measuring.progress import Progress
from benchmarks.sharing.machines import machines
from benchmarks.workloads.popularity import zipf_weights
from cachectl.settings import ControllerSettings
from protocol.generation import Sampling
from protocol.prompts import Prompt, SegmentKind

WAYS = ("alone", "routed", "shared", "one", "generator")
SHARING = ("shared", "generator")
NAMESPACE = "benchmark"
HALF = 0.5
"""The share of the queries that the popular documents get."""
HALF_OF_QUERIES = {"hotpotqa": 0.229, "squad": 0.031, "triviaqa": 0.314}
"""The share of a question set's documents that half of its queries concern, as Shared RAG-DCache counts them."""

_SYSTEM = random_segment("system", 32, SegmentKind.SYSTEM)


class Load(msgspec.Struct, frozen=True):
    """What is asked: ``documents`` of ``document_tokens`` tokens, ``top_k`` in a prompt, by ``clients`` at once.

    Each way gets ``queries`` in each of ``turns``, and answers have ``answer_tokens`` tokens. ``hot_share`` of the
    documents get half of the queries.
    """

    documents: int
    document_tokens: int
    top_k: int
    clients: int
    queries: int
    turns: int
    answer_tokens: int
    hot_share: float


class Served(msgspec.Struct, frozen=True):
    """How one way served all its turns but the first, which fills the caches.

    A query's latency ends with its answer. ``token_hit_rate`` is the share of prompt tokens that were not computed,
    ``peer_rate`` the share that was read on the other machine. A KV generator computed ``generated_rate`` of them.
    """

    queries_per_s: float
    mean_ttft_ms: float
    mean_latency_ms: float
    token_hit_rate: float
    peer_rate: float
    generated_rate: float


class _Turn(NamedTuple):
    """A turn's answers, the latency of each in milliseconds, and how long all took."""

    came: list[Generation]
    latencies_ms: list[float]
    seconds: float
    generated_tokens: int


class ThroughputTurns:
    """Measures a ``load`` in all ways. ``kv`` gives each machine host memory and a disk of so many GiB."""

    def __init__(
        self, engines: EngineMaker, controller: ControllerSettings, profiles: Path, load: Load, **kv: float
    ) -> None:
        self._engines = engines
        self._controller = controller
        self._profiles = profiles
        self._load = load
        self._kv = kv

    async def run(self, seed: int, progress: Progress) -> dict[str, Served]:
        """How each way served. Raises what the engines raise."""
        load = self._load
        prompts = _prompts(load, seed)
        turns: dict[str, list[_Turn]] = {way: [] for way in WAYS}
        async with AsyncExitStack() as running:
            stacks = {way: await self._stacks(way, running) for way in WAYS}
            order = list(WAYS)
            for number in range(load.turns):
                asked = [next(prompts) for _ in range(load.queries)]
                for way in order:
                    progress("measuring throughput", len(WAYS) * number + order.index(way), len(WAYS) * load.turns)
                    turns[way].append(await self._turn(stacks[way], asked))
                order.append(order.pop(0))
            progress("measuring throughput", len(WAYS) * load.turns, len(WAYS) * load.turns)
        return {way: _served(turns[way][1:]) for way in WAYS}

    async def _stacks(self, way: str, running: AsyncExitStack) -> list[LocalStack]:
        """The stacks of a way, which get queries in turn."""
        folder = Path(running.enter_context(TemporaryDirectory(prefix=f"ragtree-bench-{way}-")))
        names = tuple(f"{way}-{number}" for number in range(1 if way == "one" else 2))
        every = await running.enter_async_context(
            machines(self._engines, folder, names, sharing=way in SHARING, at_work=2, **self._kv)
        )
        groups = [{name: every[name]} for name in names] if way == "alone" else [every]
        generators = names[1:] if way == "generator" else ()
        return [
            await running.enter_async_context(
                LocalStack.over(group, self._controller, self._profiles, kv_generators=generators)
            )
            for group in groups
        ]

    async def _turn(self, stacks: Sequence[LocalStack], prompts: Sequence[Prompt]) -> _Turn:
        """Have all clients ask until there are no prompts left."""
        left = iter(prompts)
        took: list[Generation] = []
        latencies_ms: list[float] = []
        balanced = cycle(stacks)
        before = await _generated_tokens(stacks)
        sampling = Sampling(self._load.answer_tokens)

        async def client() -> None:
            for prompt in left:
                asked = time.perf_counter()
                took.append(await next(balanced).answer(prompt, NAMESPACE, sampling))
                latencies_ms.append(1000 * (time.perf_counter() - asked))

        began = time.perf_counter()
        await asyncio.gather(*(client() for _ in range(self._load.clients)))
        seconds = time.perf_counter() - began
        for stack in stacks:
            # Background work must not slow the next way down.
            await stack.settle()
        return _Turn(took, latencies_ms, seconds, await _generated_tokens(stacks) - before)


def _prompts(load: Load, seed: int) -> Iterator[Prompt]:
    """Prompts without end: new questions about documents that come again."""
    draws = random.Random(seed)  # noqa: S311 - a repeatable draw
    weights = zipf_weights(load.documents, load.hot_share, HALF)
    number = 0
    while True:
        number += 1
        chosen: dict[int, None] = {}
        while len(chosen) < min(load.top_k, load.documents):
            chosen.update(dict.fromkeys(draws.choices(range(load.documents), weights)))
        documents = [random_segment(f"document {which}", load.document_tokens) for which in chosen]
        question = random_segment(f"question {seed} {number}", QUESTION_TOKENS, SegmentKind.QUESTION)
        yield Prompt((_SYSTEM, *documents, question))


def _served(turns: Sequence[_Turn]) -> Served:
    came = [answer for turn in turns for answer in turn.came]
    tokens = sum(answer.prefill.prompt_tokens for answer in came)
    return Served(
        queries_per_s=len(came) / sum(turn.seconds for turn in turns),
        mean_ttft_ms=mean(answer.ttft_ms for answer in came),
        mean_latency_ms=mean(latency for turn in turns for latency in turn.latencies_ms),
        token_hit_rate=sum(answer.prefill.cached_tokens for answer in came) / tokens,
        peer_rate=sum(read.tokens for answer in came for read in answer.prefill.peers) / tokens,
        generated_rate=sum(turn.generated_tokens for turn in turns) / tokens,
    )


async def _generated_tokens(stacks: Sequence[LocalStack]) -> int:
    return sum([(await stack.stats()).generated_tokens for stack in stacks])
