"""Exactness: compares greedy tokens and logprobs with the cache and without, prompt by prompt.

With the cache, a prompt's documents come from whichever tier holds them. Memory is made so small that all tiers are
used and everything is evicted again and again. Halfway, engine and controller restart over what is on disk and in host
memory.

Composed requests may run in between: before each prompt, one with the same documents in reversed order. Their own
answers are approximations, and are not compared.

The baseline is vLLM without the connector and without its own prefix cache, one request at a time. A second run of the
baseline, with requests side by side, shows how much the engine differs from itself.

Limits: the largest difference grows with the number of prompts, so compare only runs of equal length.
"""

import asyncio
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from types import MappingProxyType

import msgspec

from cachectl.settings import ControllerSettings
from examine.measuring import Progress
from examine.measuring.engines import Generation, generate
from protocol.generation import Sampling
from protocol.plans import PrefillPlan, Reuse
from protocol.prompts import Prompt, SegmentKind
from ragtree_lab.measuring.engines import ComparedEngines, kv_cache_of
from ragtree_lab.measuring.local_stack import LocalStack

NAMESPACE = "exactness"
# Small enough that the documents of a hundred prompts do not fit, so each tier evicts to the next.
SMALL = {"gpu_share": 0.5, "host_gib": 0.15, "disk_gib": 0.6}
SMALL_ENGINE_TOKENS = 2_560
SIDE_BY_SIDE = 4


class Difference(msgspec.Struct, frozen=True):
    """Differences between two runs of the same prompts: ``mismatches`` counts prompts with different greedy tokens.

    The largest difference of logprobs is over the tokens up to the first one that differs.
    """

    prompts: int
    mismatches: int
    mismatch_rate: float
    largest_logprob_difference: float


class ExactnessResult(msgspec.Struct, frozen=True):
    """Differences with the cache and between two runs without it, and the origin of prompt tokens.

    ``instances`` engines ran with the cache. ``mismatches`` and the next two fields compare with and without it.
    ``tokens`` counts prompt tokens by tier, and ``computed`` ones; ``composed_tokens`` those of the composed requests
    in between. ``evictions`` are by tier. ``lost`` counts copies that an engine reported as missing.
    """

    dtype: str
    prompts: int
    answer_tokens: int
    instances: int
    async_scheduling: bool
    tensor_parallel_size: int
    mismatches: int
    mismatch_rate: float
    largest_logprob_difference: float
    without_cache: Difference
    tokens: dict[str, int]
    composed_tokens: int
    evictions: dict[str, int]
    lost: int
    restarts: int
    first_mismatch: str | None


class ExactnessBenchmark:
    """Asks prompts for ``answer_tokens`` tokens each; the first ``control`` run twice without the cache.

    With the cache, ``instances`` engines share host memory and disk, and as many prompts run at once. Each engine runs
    with or without ``async_scheduling``, on ``tensor_parallel`` ranks, and with composed requests ``composed_between``
    if wanted. ``profiles`` is the folder of cost profiles. ``small`` has the sizes of the tiers. The prompts take turns
    in the ``namespaces``, which may be those of adapters. The model has so many ``groups`` of layers, each with blocks
    of its own.
    """

    def __init__(
        self,
        engines: ComparedEngines,
        controller: ControllerSettings,
        profiles: Path,
        dtype: str,
        answer_tokens: int,
        control: int,
        instances: int = 1,
        async_scheduling: bool = False,
        tensor_parallel: int = 1,
        composed_between: bool = False,
        small: Mapping[str, float] = MappingProxyType(SMALL),
        namespaces: Sequence[str] = (NAMESPACE,),
        groups: int = 1,
    ) -> None:
        self._engines = engines
        self._controller = controller
        self._profiles = profiles
        self._dtype = dtype
        self._answer_tokens = answer_tokens
        self._control = control
        self._instances = instances
        self._engine_args = {"async_scheduling": async_scheduling, "tensor_parallel_size": tensor_parallel}
        self._composed_between = composed_between
        self._small = small
        self._namespaces = tuple(namespaces)
        self._small_engine = kv_cache_of(SMALL_ENGINE_TOKENS * groups)
        self._composed_tokens = 0
        self._tokens: Counter[str] = Counter()
        self._evictions: Counter[str] = Counter()
        self._lost = 0

    async def run(self, prompts: Sequence[Prompt], progress: Progress) -> ExactnessResult:
        """Run the prompts in order. ``progress`` is called with (step, done, total)."""
        alone = await self._without_cache(prompts, 1, "without the cache", progress)
        control = prompts[: self._control]
        beside = await self._without_cache(control, SIDE_BY_SIDE, "without it, side by side", progress)
        cached = await self._with_cache(prompts, progress)
        difference = compare(alone, cached)
        first = next((index for index in range(len(prompts)) if _tokens(alone[index]) != _tokens(cached[index])), None)
        return ExactnessResult(
            dtype=self._dtype,
            prompts=len(prompts),
            answer_tokens=self._answer_tokens,
            instances=self._instances,
            async_scheduling=bool(self._engine_args["async_scheduling"]),
            tensor_parallel_size=self._engine_args["tensor_parallel_size"],
            mismatches=difference.mismatches,
            mismatch_rate=difference.mismatch_rate,
            largest_logprob_difference=difference.largest_logprob_difference,
            without_cache=compare(alone[: len(control)], beside),
            tokens=dict(self._tokens),
            composed_tokens=self._composed_tokens,
            evictions=dict(self._evictions),
            lost=self._lost,
            restarts=1,
            first_mismatch=None if first is None else f"prompt {first}: {alone[first].text!r}, {cached[first].text!r}",
        )

    async def _without_cache(
        self, prompts: Sequence[Prompt], at_once: int, step: str, progress: Progress
    ) -> list[Generation]:
        answers: list[Generation] = []
        async with self._engines.plain(prefix_caching=False, engine_args=self._engine_args) as engine:
            for begin in range(0, len(prompts), at_once):
                progress(step, begin, len(prompts))
                plans = [
                    PrefillPlan(f"{step} {begin + offset}", "generator", self._namespace(begin + offset), prompt)
                    for offset, prompt in enumerate(prompts[begin : begin + at_once])
                ]
                answers += await asyncio.gather(
                    *(generate(engine, plan, Sampling(self._answer_tokens, logprobs=True)) for plan in plans)
                )
        progress(step, len(prompts), len(prompts))
        return answers

    async def _with_cache(self, prompts: Sequence[Prompt], progress: Progress) -> list[Generation]:
        answers: dict[int, Generation] = {}
        step = "with the cache"
        with tempfile.TemporaryDirectory(prefix="ragtree-bench-") as name:
            half = len(prompts) // 2
            for part in (range(half), range(half, len(prompts))):
                async with AsyncExitStack() as running:
                    engines = {
                        instance: await running.enter_async_context(
                            self._engines.caching(
                                Path(name),
                                instance=instance,
                                keep_host=part.stop == half,
                                at_work=self._instances,
                                engine_args={**self._small_engine, **self._engine_args},
                                **self._small,
                            )
                        )
                        for instance in (f"generator-{number}" for number in range(self._instances))
                    }
                    stack = await running.enter_async_context(
                        LocalStack.over(engines, self._controller, self._profiles)
                    )
                    waiting = iter(part)

                    async def ask(stack: LocalStack = stack, waiting: Iterator[int] = waiting) -> None:
                        for index in waiting:
                            progress(step, len(answers), len(prompts))
                            if self._composed_between:
                                await self._compose(stack, prompts[index])
                            answer = await stack.answer(
                                prompts[index], self._namespace(index), Sampling(self._answer_tokens, logprobs=True)
                            )
                            answers[index] = answer
                            self._count(answer)

                    await asyncio.gather(*(ask() for _ in engines))
                    for tier in (await stack.stats()).tiers:
                        self._evictions[tier.tier] += tier.evictions
        progress(step, len(prompts), len(prompts))
        return [answers[index] for index in range(len(prompts))]

    def _namespace(self, index: int) -> str:
        return self._namespaces[index % len(self._namespaces)]

    async def _compose(self, stack: LocalStack, prompt: Prompt) -> None:
        """Compose a prompt of the same documents in reversed order."""
        documents = reversed(prompt.documents)
        segments = (next(documents) if segment.kind is SegmentKind.DOCUMENT else segment for segment in prompt.segments)
        answer = await stack.answer(Prompt(tuple(segments)), NAMESPACE, Sampling(1), reuse=Reuse.COMPOSED)
        self._composed_tokens += answer.prefill.composed_tokens + answer.prefill.recomputed_tokens

    def _count(self, answer: Generation) -> None:
        prefill = answer.prefill
        self._tokens.update({str(tier): tokens for tier, tokens in prefill.loaded.items()})
        self._tokens["computed"] += prefill.prompt_tokens - prefill.cached_tokens
        self._lost += len(prefill.lost)


def compare(one: Sequence[Generation], other: Sequence[Generation]) -> Difference:
    """Compare the answers of two runs."""
    mismatches = 0
    largest = 0.0
    for left, right in zip(one, other, strict=True):
        mismatches += _tokens(left) != _tokens(right)
        for mine, theirs in zip(left.logprobs, right.logprobs, strict=False):
            if mine.token_id != theirs.token_id:
                break
            largest = max(largest, abs(mine.logprob - theirs.logprob))
    return Difference(len(one), mismatches, mismatches / len(one), largest)


def _tokens(answer: Generation) -> list[int]:
    return [token.token_id for token in answer.logprobs]
