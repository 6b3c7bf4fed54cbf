"""An engine without a model that answers at configured speeds.

It is meant for load tests, and for machines that cannot run a model. It reports its name as ``fake``. Its answers
repeat the first document of the prompt.
"""

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable

from generator.prompts.tokenizer import ModelTokenizer
from generator.settings import FakeEngineSettings
from protocol.errors import EngineDied, EngineFailed, EngineNotReady, InvalidRequest, UnknownModel
from protocol.generation import (
    EngineInfo,
    FinishReason,
    GenerationStep,
    PrefillCost,
    PrefillResult,
    Sampling,
    StepBudget,
)
from protocol.kv import LostCopy, Orders, ResidencyReport
from protocol.plans import PrefillPlan
from protocol.prompts import Prompt

_REMEMBERED = 256
_STEP_TOKENS = 256


class FakeEngine:
    """Prefills one prompt at a time at ``prefill_tokens_per_s``; all streams decode in parallel.

    Every prompt is computed in full, in steps of ``step_tokens``, because there is no KV to cache. A plan that is ended
    frees the device after its current step, as in a real engine.
    """

    def __init__(
        self,
        model: str,
        tokenizer: ModelTokenizer,
        max_model_len: int,
        speeds: FakeEngineSettings,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        step_tokens: int = _STEP_TOKENS,
    ) -> None:
        # Prompts are prefilled one at a time, so admitting a second one gains nothing. For the planner, one step takes
        # the longest prompt; the steps after which a prefill can be ended do not matter to it.
        step = StepBudget(max_model_len, max_model_len)
        self._info = EngineInfo(model=model, engine="fake", max_model_len=max_model_len, step=step)
        self._tokenizer = tokenizer
        self._speeds = speeds
        self._sleep = sleep
        self._step_tokens = step_tokens
        self._device = asyncio.Lock()
        # The events that end running streams, by plan id.
        self._ending: dict[str, asyncio.Event] = {}
        # Plans that were ended while they were not running.
        self._ended_early: deque[str] = deque(maxlen=_REMEMBERED)
        self._started = self._failed = False

    async def start(self) -> None:
        """Start accepting plans."""
        self._started = True

    async def close(self) -> None:
        """Refuse further plans. Running streams end with EngineDied at their next step."""
        self._started = False

    def fail(self) -> None:
        """Die of an error in a step. Streams that are computed raise EngineFailed, those that wait EngineDied."""
        self._failed = True

    async def ready(self) -> None:
        """Raise EngineNotReady before ``start`` and after ``close``, EngineDied after ``fail``."""
        if self._failed:
            raise EngineDied("the fake engine has failed", begun=False)
        if not self._started:
            raise EngineNotReady("the fake engine is not started")

    async def info(self) -> EngineInfo:
        """The served model and the engine's limits."""
        return self._info

    async def metrics(self) -> dict[str, str]:
        """No metrics: the fake engine counts nothing."""
        return {}

    async def stream(self, plan: PrefillPlan, sampling: Sampling) -> AsyncGenerator[GenerationStep, None]:
        """Wait for the time of the prefill, then repeat the first document token by token."""
        await self.ready()
        for plan_id in plan.ends:
            await self.end(plan_id)
        ended = self._ending[plan.query_id] = asyncio.Event()
        if plan.query_id in self._ended_early:
            ended.set()
        finished = False
        try:
            async for step in self._steps(plan.prompt, sampling, ended):
                yield step
                finished = step.finish_reason is not None
            if not finished:
                yield GenerationStep("", 0, finish_reason="ended")
        finally:
            del self._ending[plan.query_id]

    async def check(self, sampling: Sampling, caller: str) -> None:  # noqa: ARG002 - it compiles nothing
        """Raise InvalidRequest for a schema or log probabilities: answers are repeated text."""
        await self.ready()
        for field, asked in {"json_schema": sampling.json_schema is not None, "logprobs": sampling.logprobs}.items():
            if asked:
                raise InvalidRequest(f"the fake engine has no model, so it does not serve {field}", field)

    async def end(self, plan_id: str) -> None:
        """End a stream after its current step."""
        await self.ready()
        if plan_id in self._ending:
            self._ending[plan_id].set()
        else:
            # The stream has ended, or this call has overtaken the one that begins it.
            self._ended_early.append(plan_id)

    async def _steps(self, prompt: Prompt, sampling: Sampling, ended: asyncio.Event) -> AsyncGenerator[GenerationStep]:
        """The steps of a stream, until it is complete or ``ended``."""
        began = time.monotonic()
        begun = asyncio.Event()
        prefilling, ending = (
            asyncio.ensure_future(self._prefill(prompt.token_count, begun, ended)),
            asyncio.ensure_future(ended.wait()),
        )
        try:
            await asyncio.wait({prefilling, ending}, return_when=asyncio.FIRST_COMPLETED)
            if begun.is_set() or prefilling.done():
                await prefilling
        finally:
            prefilling.cancel()
            ending.cancel()
        prefill: PrefillResult | None = PrefillResult(
            prompt_tokens=prompt.token_count,
            cached_tokens=0,
            prefill_ms=(time.monotonic() - began) * 1000,
        )
        texts, reason = self._answer(prompt, sampling)
        for position, text in enumerate(texts, start=1):
            if position > 1:
                await self._sleep(1 / self._speeds.decode_tokens_per_s)
            if not self._started:
                raise EngineDied("the fake engine was closed")
            self._computes()
            if ended.is_set():
                return
            yield GenerationStep(text, 1, prefill, reason if position == len(texts) else None)
            prefill = None

    async def carry_out(self, orders: Orders) -> tuple[LostCopy, ...]:  # noqa: ARG002 - there are no tiers
        """Do nothing: there are no tiers, so there is nothing to move or delete."""
        await self.ready()
        return ()

    async def load_adapter(self, name: str, source: str) -> str:  # noqa: ARG002 - there are no weights
        """Refuse: there are no weights that an adapter could change."""
        raise InvalidRequest("The fake engine serves no adapters.", "source")

    async def unload_adapter(self, name: str) -> None:
        """Raise UnknownModel: there is none."""
        raise UnknownModel(f"No adapter {name!r} is loaded.", "name")

    async def residency(self) -> tuple[ResidencyReport, ...]:
        """No reports: there are no tiers."""
        await self.ready()
        return ()

    async def probe_prefill(self, cached_tokens: int, new_tokens: int) -> PrefillCost:
        """Measure a prefill of ``new_tokens`` at the configured speed. Cached tokens cost nothing."""
        await self.ready()
        began = time.monotonic()
        await self._prefill(new_tokens, asyncio.Event(), asyncio.Event())
        return PrefillCost(cached_tokens, new_tokens, time.monotonic() - began)

    def _answer(self, prompt: Prompt, sampling: Sampling) -> tuple[list[str], FinishReason]:
        """The text of each token of the answer, and why the answer ends."""
        source = next(part.token_ids for part in (*prompt.documents, *prompt.segments) if part.token_ids)
        completed = self._tokenizer.decode_stream()
        texts = [completed(token_id) for token_id in source[: sampling.max_tokens]]
        whole = "".join(texts)
        found = [(begin, begin + len(stop)) for stop in sampling.stop if (begin := whole.find(stop)) >= 0]
        if not found:
            return texts, "length" if len(source) > len(texts) else "stop"
        # The tokens of a stop string are generated, but its text is not part of the answer.
        begin, end = min(found)
        kept: list[str] = []
        at = 0
        for text in texts:
            kept.append(text[: max(0, begin - at)])
            at += len(text)
            if at >= end:
                break
        return kept, "stop"

    async def _prefill(self, tokens: int, begun: asyncio.Event, ended: asyncio.Event) -> None:
        """Occupy the device for a prompt of ``tokens`` tokens, or until the first step after it is ``ended``."""
        async with self._device:
            await self.ready()
            begun.set()
            for computed in range(0, tokens, self._step_tokens):
                if ended.is_set():
                    return
                step = min(self._step_tokens, tokens - computed)
                await self._sleep(step / self._speeds.prefill_tokens_per_s)
                self._computes()

    def _computes(self) -> None:
        if self._failed:
            raise EngineFailed("The fake engine failed while it computed this request.")
