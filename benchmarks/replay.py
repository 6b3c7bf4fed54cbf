"""The stack against plain vLLM under load: real questions, real retrieval, open-loop Poisson arrivals.

Every system has the same engine flags and the same KV memory, and gets the same prompts at the same times:
``ragtree``, ``vllm`` without any reuse, ``vllm-prefix`` with vLLM's own prefix cache. Rates are swept from the lowest
up; at each the systems take turns, in alternating order, one running at a time. A system's cache is what its requests
so far made of it: the first ones, cold, are reported by themselves.
"""

import asyncio
import tempfile
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import islice
from pathlib import Path
from statistics import mean
from uuid import uuid4

import msgspec

from benchmarks.engines import EngineMaker, Generation, generate
from benchmarks.local_stack import LocalStack
from benchmarks.retrieved_prompts import Arrival, poisson
from benchmarks.statistics import percentile
from cachectl.settings import ControllerSettings
from protocol.errors import ConfigError
from protocol.plans import PrefillPlan
from protocol.prompts import Prompt

NAMESPACE = "replay"
OURS = "ragtree"
BASELINES = {"vllm": False, "vllm-prefix": True}
"""Baselines by name, and whether vLLM's own prefix cache is on in them."""

SUSTAINED = 5.0
"""A rate is sustained while the mean TTFT stays within so many times that at the lowest rate (RAGCache, section 7)."""

Progress = Callable[[str, int, int | None], None]
Answer = Callable[[Prompt], Awaitable[Generation]]


class RateResult(msgspec.Struct, frozen=True):
    """A system at one rate of requests a second: TTFT in milliseconds, and the share of prompt tokens not computed."""

    rate: float
    requests: int
    mean_ttft_ms: float
    p50_ttft_ms: float
    p99_ttft_ms: float
    token_hit_rate: float


class SystemResult(msgspec.Struct, frozen=True):
    """A system: ``cold`` at the lowest rate with nothing cached, then ``warm`` at each.

    ``throughput`` is the highest rate that it sustains, in requests a second.
    """

    cold: RateResult
    warm: list[RateResult]
    throughput: float


class ReplayResult(msgspec.Struct, frozen=True):
    """Systems by name, and by baseline how many times lower ours has its mean TTFT, and how much higher its throughput.

    ``ttft_ratio`` is taken at the highest rate that the baseline sustains, ``ttft_ratio_by_rate`` at each.
    """

    popularity: str
    documents: int
    prompt_tokens: float
    rates: list[float]
    systems: dict[str, SystemResult]
    ttft_ratio: dict[str, float]
    ttft_ratio_by_rate: dict[str, list[float]]
    throughput_ratio: dict[str, float]


class ReplayBenchmark:
    """Replays arrivals on ours and the systems ``against`` it. Raises ConfigError for one that does not exist."""

    def __init__(
        self, engines: EngineMaker, controller: ControllerSettings, profiles: Path, against: Sequence[str]
    ) -> None:
        unknown = set(against) - BASELINES.keys()
        if unknown:
            raise ConfigError(f"there is no baseline {', '.join(sorted(unknown))}; there are {', '.join(BASELINES)}")
        self._engines = engines
        self._controller = controller
        self._profiles = profiles
        self._against = list(against)

    async def run(
        self,
        prompts: Callable[[], Iterator[Prompt]],
        rates: Sequence[float],
        requests: int,
        warm_up: int,
        documents: int,
        popularity: str,
        seed: int,
        progress: Progress,
    ) -> ReplayResult:
        """Sweep ``rates`` with ``requests`` each, after ``warm_up`` more than the cold ones, as fast as they go.

        ``prompts`` begins the stream of prompts anew, the same one at each call.
        """
        stream = prompts()
        cold = poisson(stream, rates[0], requests, seed)
        warming = list(islice(stream, warm_up))
        phases = [(rate, poisson(stream, rate, requests, seed)) for rate in rates]
        tokens = [arrival.prompt.token_count for phase in (cold, *(phase for _, phase in phases)) for arrival in phase]
        async with AsyncExitStack() as running:
            systems = {name: await running.enter_async_context(self._system(name)) for name in (*self._against, OURS)}
            results = {name: [await _at_rate(name, systems[name], rates[0], cold, progress)] for name in systems}
            for name, answer in systems.items():
                for done, prompt in enumerate(warming, start=1):
                    await answer(prompt)
                    progress(f"{name}, warming up", done, warm_up)
            for number, (rate, phase) in enumerate(phases):
                for name in list(systems)[:: -1 if number % 2 else 1]:
                    results[name].append(await _at_rate(name, systems[name], rate, phase, progress))
        summary = {name: _summary(measured) for name, measured in results.items()}
        return ReplayResult(
            popularity=popularity,
            documents=documents,
            prompt_tokens=mean(tokens),
            rates=list(rates),
            systems=summary,
            ttft_ratio={name: _ttft_ratio(summary[name], summary[OURS]) for name in self._against},
            ttft_ratio_by_rate={
                name: [
                    theirs.mean_ttft_ms / ours.mean_ttft_ms
                    for theirs, ours in zip(summary[name].warm, summary[OURS].warm, strict=True)
                ]
                for name in self._against
            },
            throughput_ratio={name: summary[OURS].throughput / summary[name].throughput for name in self._against},
        )

    @asynccontextmanager
    async def _system(self, name: str) -> AsyncGenerator[Answer]:
        if name != OURS:
            async with self._engines.plain(prefix_caching=BASELINES[name]) as engine:

                async def plain(prompt: Prompt) -> Generation:
                    return await generate(engine, PrefillPlan(uuid4().hex, "generator", NAMESPACE, prompt), 1)

                yield plain
            return
        with tempfile.TemporaryDirectory(prefix="ragtree-bench-") as folder:
            async with (
                self._engines.caching(Path(folder)) as engine,
                LocalStack.over(engine, self._controller, self._profiles) as stack,
            ):

                async def ours(prompt: Prompt) -> Generation:
                    return await stack.answer(prompt, NAMESPACE, 1)

                yield ours


async def _open_loop(answer: Answer, arrivals: Sequence[Arrival], progress: Callable[[int], None]) -> list[Generation]:
    """Send each prompt when its time comes, whatever has become of those before."""
    began = asyncio.get_running_loop().time()
    done = 0

    async def send(arrival: Arrival) -> Generation:
        nonlocal done
        await asyncio.sleep(began + arrival.at_s - asyncio.get_running_loop().time())
        came = await answer(arrival.prompt)
        done += 1
        progress(done)
        return came

    return await asyncio.gather(*(send(arrival) for arrival in arrivals))


async def _at_rate(
    name: str, answer: Answer, rate: float, arrivals: Sequence[Arrival], progress: Progress
) -> RateResult:
    step = f"{name} at {rate:g}/s"
    came = await _open_loop(answer, arrivals, lambda done: progress(step, done, len(arrivals)))
    times = [one.ttft_ms for one in came]
    prompt_tokens = sum(one.prefill.prompt_tokens for one in came)
    return RateResult(
        rate=rate,
        requests=len(came),
        mean_ttft_ms=mean(times),
        p50_ttft_ms=percentile(times, 50),
        p99_ttft_ms=percentile(times, 99),
        token_hit_rate=sum(one.prefill.cached_tokens for one in came) / prompt_tokens,
    )


def _summary(measured: Sequence[RateResult]) -> SystemResult:
    cold, *warm = measured
    return SystemResult(cold, warm, _sustained(warm).rate)


def _sustained(warm: Sequence[RateResult]) -> RateResult:
    """The highest rate up to which the mean TTFT stays within bounds all the way."""
    best = warm[0]
    for result in warm:
        if result.mean_ttft_ms > SUSTAINED * warm[0].mean_ttft_ms:
            break
        best = result
    return best


def _ttft_ratio(baseline: SystemResult, ours: SystemResult) -> float:
    place = next(place for place, result in enumerate(baseline.warm) if result.rate == baseline.throughput)
    return baseline.warm[place].mean_ttft_ms / ours.warm[place].mean_ttft_ms
