"""Sustained reuse: compares the stack with plain vLLM on prompts whose pairs of documents are always new.

There are more documents than can be kept, and only a prompt's first one can be reused. The second is always computed
and saved, and is useless later. A cache that lets such documents evict useful ones gets slower with every prompt. The
baseline, plain vLLM without any reuse, runs the same prompts in turn.

Limits: one request at a time, so no queueing.
"""

from collections.abc import Sequence
from contextlib import AsyncExitStack
from statistics import mean

import msgspec

from benchmarks.measuring.engines import Generation
from benchmarks.measuring.progress import Progress
from benchmarks.measuring.systems import OURS, Systems
from benchmarks.workloads.retrieved_prompts import document_tokens
from protocol.errors import ConfigError
from protocol.prompts import Prompt

BASELINE = "vllm"
PLAIN_WARM_UP = 3


class Stretch(msgspec.Struct, frozen=True):
    """Consecutive prompts: both mean TTFTs in milliseconds, and how many times lower ours is."""

    prompts: int
    mean_ttft_ms: float
    baseline_mean_ttft_ms: float
    speedup: float
    token_hit_rate: float


class SustainedResult(msgspec.Struct, frozen=True):
    """All complete stretches in order, and the last one's speed-up over the first one's.

    ``document_tokens`` counts the KV of all prompts' documents, equal prefixes once; ``memory_tokens`` is the room for
    KV.
    """

    prompts: int
    document_tokens: int
    memory_tokens: int
    stretches: list[Stretch]
    last_over_first: float


class SustainedBenchmark:
    """Runs prompts in stretches of ``stretch``, in turn with plain vLLM."""

    def __init__(self, systems: Systems, stretch: int) -> None:
        self._systems = systems
        self._stretch = stretch

    async def run(self, warm_up: Sequence[Prompt], prompts: Sequence[Prompt], progress: Progress) -> SustainedResult:
        """Measure ``prompts`` after ``warm_up``.

        Raises ConfigError for less than two stretches, and what systems raise.

        Plain vLLM keeps nothing, so a few prompts warm it up.
        """
        if len(prompts) < 2 * self._stretch:
            raise ConfigError(f"{len(prompts)} prompts are less than two stretches of {self._stretch}", "pairs")
        ours: list[Generation] = []
        theirs: list[Generation] = []
        async with AsyncExitStack() as running:
            baseline = await running.enter_async_context(self._systems.running(BASELINE))
            system = await running.enter_async_context(self._systems.running(OURS))
            for prompt in warm_up[:PLAIN_WARM_UP]:
                await baseline.answer(prompt)
            for done, prompt in enumerate(warm_up, start=1):
                await system.answer(prompt)
                progress("warming up", done, len(warm_up))
            for number, prompt in enumerate(prompts):
                sides = [(system, ours), (baseline, theirs)]
                for side, came in sides[:: -1 if number % 2 else 1]:
                    came.append(await side.answer(prompt))
                    # Background work must not slow the other system down.
                    await side.settle()
                progress("measuring", number + 1, len(prompts))
        stretches = [
            stretch(ours[begin : begin + self._stretch], theirs[begin : begin + self._stretch])
            for begin in range(0, len(prompts) - self._stretch + 1, self._stretch)
        ]
        return SustainedResult(
            prompts=len(prompts),
            document_tokens=document_tokens(prompts),
            memory_tokens=sum(system.memory_tokens.values()),
            stretches=stretches,
            last_over_first=stretches[-1].speedup / stretches[0].speedup,
        )


def stretch(ours: Sequence[Generation], theirs: Sequence[Generation]) -> Stretch:
    """Compare both systems' answers to the same prompts."""
    mine, plain = (mean(one.ttft_ms for one in came) for came in (ours, theirs))
    tokens = sum(one.prefill.prompt_tokens for one in ours)
    return Stretch(len(ours), mine, plain, plain / mine, sum(one.prefill.cached_tokens for one in ours) / tokens)
