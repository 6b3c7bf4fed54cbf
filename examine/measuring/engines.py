"""Engines to compare: the stack's own with its connector, and plain vLLM with equal flags and KV cache."""

import os
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from examine.measuring.kv_paths import INSTANCE
from generator.adapters import read_adapter
from generator.engines.vllm_engine import VllmEngine
from generator.models import ModelStore
from generator.settings import GeneratorSettings, KvSettings
from protocol.errors import EngineDied
from protocol.generation import FinishReason, GenerationStep, PrefillResult, Sampling, TokenLogprob
from protocol.kv import LostCopy
from protocol.parts import Generator
from protocol.plans import PrefillPlan


class Generation(msgspec.Struct, frozen=True):
    """Result of one plan: milliseconds to the first token, the prefill, and the answer.

    ``tokens`` counts the answer's tokens. ``unwritten`` and ``finish_reason`` are those of the last step.
    """

    ttft_ms: float
    prefill: PrefillResult
    text: str
    logprobs: tuple[TokenLogprob, ...]
    tokens: int = 0
    unwritten: tuple[LostCopy, ...] | None = None
    finish_reason: FinishReason | None = None


async def generate(
    engine: Generator,
    plan: PrefillPlan,
    sampling: Sampling,
    on_prefill: Callable[[PrefillResult], Awaitable[None]] | None = None,
) -> Generation:
    """Run a plan to its end. ``on_prefill`` is called at the first token. Raises what the engine raises."""
    began = time.perf_counter()
    first_s: float | None = None
    prefill: PrefillResult | None = None
    last: GenerationStep | None = None
    text = ""
    tokens = 0
    chosen: list[TokenLogprob] = []
    async with aclosing(engine.stream(plan, sampling)) as steps:
        async for step in steps:
            if first_s is None:
                first_s = time.perf_counter() - began
                prefill = step.prefill
                if on_prefill is not None and prefill is not None:
                    await on_prefill(prefill)
            text += step.text
            tokens += step.tokens
            chosen += step.logprobs
            last = step
    if first_s is None or prefill is None or last is None:
        raise EngineDied("the stream ended without a token")
    return Generation(first_s * 1000, prefill, text, tuple(chosen), tokens, last.unwritten, last.finish_reason)


async def later_token_ms(engine: Generator, plan: PrefillPlan, sampling: Sampling) -> float:
    """Run a plan to its end; return the milliseconds of a token after the first. Raises what the engine raises."""
    began = time.perf_counter()
    answer = await generate(engine, plan, sampling)
    return ((time.perf_counter() - began) * 1000 - answer.ttft_ms) / max(1, answer.tokens - 1)


class EngineMaker:
    """Makes engines of one model with the same flags, each with its own way to keep KV.

    Only one works at a time, so each gets all cores, also those that the settings reserve for the rest of the stack;
    ``threads`` limits them.
    """

    def __init__(self, settings: GeneratorSettings, models: ModelStore, threads: int | None = None) -> None:
        self._settings = settings.model_copy(update={"cpu_threads": threads or len(os.sched_getaffinity(0))})
        self._models = models

    def without(self, argument: str) -> "EngineMaker":
        """A maker of engines without one of the configured engine arguments."""
        given = {name: value for name, value in self._settings.engine_args.items() if name != argument}
        settings = self._settings.model_copy(update={"engine_args": given})
        return EngineMaker(settings, self._models, settings.cpu_threads)

    def kv_settings(self, **kv: Any) -> KvSettings:  # noqa: ANN401
        """How our engines keep KV; ``kv`` overrides the settings. Never in the object store that a stack uses."""
        return self._settings.kv.model_copy(update={"enabled": True, "object_store": None, **kv})

    @asynccontextmanager
    async def plain(self) -> AsyncGenerator[VllmEngine]:
        """Run vLLM without the connector, with its own prefix cache."""
        async with self._running(self._settings, KvSettings(enabled=False)) as engine:
            yield engine

    @asynccontextmanager
    async def caching(self, folder: Path, *, keep_host: bool = False, **kv: Any) -> AsyncGenerator[VllmEngine]:  # noqa: ANN401
        """Run the stack's engine. Its disk tier is in ``folder``; ``kv`` overrides ``KvSettings``.

        ``keep_host`` keeps the host memory for the next engine on this folder.
        """
        async with self._caching(
            self._settings, INSTANCE, self.kv_settings(disk_dir=folder, **kv), keep_host
        ) as engine:
            yield engine

    @asynccontextmanager
    async def _caching(
        self, settings: GeneratorSettings, instance: str, kv: KvSettings, keep_host: bool
    ) -> AsyncGenerator[VllmEngine]:
        try:
            async with self._running(settings, kv, instance) as engine:
                yield engine
        finally:
            if not keep_host:
                kv.discard_host_memory()

    @asynccontextmanager
    async def _running(
        self, settings: GeneratorSettings, kv: KvSettings, instance: str = INSTANCE
    ) -> AsyncGenerator[VllmEngine]:
        own = settings.model_copy(update={"kv": self._models.with_auxiliary(kv)})
        model = self._models.resolve(settings.model)
        named = {name: self._models.adapter(place) for name, place in settings.adapters.items()}
        adapters = [read_adapter(name, folder, model) for name, folder in named.items()]
        engine = VllmEngine(own, model, instance, adapters)
        await engine.start()
        try:
            yield engine
        finally:
            await engine.close()
