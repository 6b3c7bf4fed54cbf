"""Whether reuse lasts: prompts whose documents never stood behind each other before, over more than can be kept.

Only the first document of such a prompt can be reused, the second is always computed, saved, and of no use to anybody:
a cache that lets it crowd out what is asked for again gets slower with every prompt. Prompt by prompt, in turn, plain
vLLM without any reuse computes the same.
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
    """Consecutive prompts: mean TTFT in milliseconds of both, and how many times lower ours is."""

    prompts: int
    mean_ttft_ms: float
    baseline_mean_ttft_ms: float
    speedup: float
    token_hit_rate: float


class SustainedResult(msgspec.Struct, frozen=True):
    """``stretches`` in their order, whole ones, and the last one's speed-up over the first one's.

    ``document_tokens`` counts the KV of all prompts' documents, equal prefixes once; ``memory_tokens`` is what can be
    kept.
    """

    prompts: int
    document_tokens: int
    memory_tokens: int
    stretches: list[Stretch]
    last_over_first: float


class SustainedBenchmark:
    """Asks prompts in stretches of ``stretch``, in turn with plain vLLM."""

    def __init__(self, systems: Systems, stretch: int) -> None:
        self._systems = systems
        self._stretch = stretch

    async def run(self, warm_up: Sequence[Prompt], prompts: Sequence[Prompt], progress: Progress) -> SustainedResult:
        """Measure ``prompts`` after ``warm_up``. Raises ConfigError for less than two stretches, or what systems raise.

        Plain vLLM keeps nothing, so a few prompts warm it up.
        """
        if len(prompts) < 2 * self._stretch:
            raise ConfigError(f"{len(prompts)} prompts are not two stretches of {self._stretch}", "pairs")
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
                    # What goes on behind the answer must not slow the other one down.
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
    """What both made of the same prompts."""
    mine, plain = (mean(one.ttft_ms for one in came) for came in (ours, theirs))
    tokens = sum(one.prefill.prompt_tokens for one in ours)
    return Stretch(len(ours), mine, plain, plain / mine, sum(one.prefill.cached_tokens for one in ours) / tokens)
