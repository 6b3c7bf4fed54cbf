"""Engines to compare: the stack's own with its connector, and plain vLLM with equal flags and KV cache."""

import os
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec

from examine.measuring.kv_paths import INSTANCE
from generator.engines.vllm_engine import VllmEngine
from generator.models import ModelStore
from generator.settings import GeneratorSettings, KvSettings
from protocol.errors import EngineDied
from protocol.generation import FinishReason, PrefillResult, Sampling, TokenLogprob
from protocol.kv import LostCopy
from protocol.parts import Generator
from protocol.plans import PrefillPlan

_BLOCK = 32
"""Tokens per block if the size of the KV cache is given."""


def kv_cache_of(tokens: int) -> dict[str, int]:
    """Return vLLM's arguments for a KV cache of ``tokens`` tokens, in whole blocks."""
    return {"block_size": _BLOCK, "num_gpu_blocks_override": tokens // _BLOCK}


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
    unwritten: tuple[LostCopy, ...] | None = None
    finish_reason: FinishReason | None = None
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
            unwritten = step.unwritten
            finish_reason = step.finish_reason
    if first_s is None or prefill is None:
        raise EngineDied("the stream ended without a token")
    return Generation(first_s * 1000, prefill, text, tuple(chosen), tokens, unwritten, finish_reason)


class EngineMaker:
    """Makes engines of one model with the same flags, each with its own way to keep KV.

    Unless stated otherwise, only one engine works at a time, so each gets all cores, whatever the settings reserve for
    the rest of the stack; ``threads`` limits them. ``at_once`` engines share the GPU memory that the settings give to
    one. ``kv_tokens`` fixes the size of each KV cache, so that it does not depend on the machine or the dtype; by
    default it is what fits.
    """

    def __init__(
        self,
        settings: GeneratorSettings,
        models: ModelStore,
        at_once: int = 1,
        kv_tokens: int | None = None,
        threads: int | None = None,
    ) -> None:
        cache = kv_cache_of(kv_tokens) if kv_tokens is not None else {}
        longest = settings.max_model_len if kv_tokens is None else min(settings.max_model_len, kv_tokens - _BLOCK)
        self._settings = settings.model_copy(
            update={
                # vLLM refuses to serve prompts that its KV cache could not hold. One block of it stays empty.
                "max_model_len": longest,
                "cpu_threads": threads or len(os.sched_getaffinity(0)),
                "engine_args": {
                    **settings.engine_args,
                    "gpu_memory_utilization": settings.gpu_memory_utilization / at_once,
                    **cache,
                },
            }
        )
        self._models = models

    def threads(self, at_work: int = 1) -> int:
        """Threads of an engine, by the number of engines that work at the same time."""
        return max(1, self._settings.cpu_threads // at_work)

    def kv_settings(self, **kv: Any) -> KvSettings:  # noqa: ANN401
        """How our engines keep KV; ``kv`` overrides the settings. Never in the object store that a stack uses."""
        return self._settings.kv.model_copy(update={"object_store": None, **kv})

    @asynccontextmanager
    async def plain(
        self,
        prefix_caching: bool = True,
        engine_args: Mapping[str, Any] = MappingProxyType({}),
        kv_tokens: int | None = None,
    ) -> AsyncGenerator[VllmEngine]:
        """Run vLLM without the connector, with or without its own prefix cache.

        ``engine_args`` are vLLM's own. ``kv_tokens`` is the size of its KV cache, if not that of the other engines.
        """
        cache = kv_cache_of(kv_tokens) if kv_tokens is not None else {}
        arguments = {"enable_prefix_caching": prefix_caching, **cache, **engine_args}
        async with self._running(KvSettings(enabled=False), arguments) as engine:
            yield engine

    @asynccontextmanager
    async def caching(
        self,
        folder: Path,
        *,
        instance: str = INSTANCE,
        keep_host: bool = False,
        at_work: int = 1,
        engine_args: Mapping[str, Any] = MappingProxyType({}),
        **kv: Any,  # noqa: ANN401
    ) -> AsyncGenerator[VllmEngine]:
        """Run the stack's engine as ``instance``. Its disk tier is in ``folder``; ``kv`` overrides ``KvSettings``.

        ``engine_args`` are vLLM's own. ``keep_host`` keeps the host memory for the next engine on this folder.
        ``at_work`` such engines work at the same time, and share the cores.
        """
        settings = self.kv_settings(disk_dir=folder, **kv)
        try:
            async with self._running(settings, engine_args, instance, at_work) as engine:
                yield engine
        finally:
            if not keep_host:
                settings.discard_host_memory()

    @asynccontextmanager
    async def _running(
        self, kv: KvSettings, arguments: Mapping[str, Any], instance: str = INSTANCE, at_work: int = 1
    ) -> AsyncGenerator[VllmEngine]:
        settings = self._settings.model_copy(
            update={
                "kv": self._models.with_auxiliary(kv),
                "cpu_threads": self.threads(at_work),
                "engine_args": {**self._settings.engine_args, **arguments},
            }
        )
        engine = VllmEngine(settings, self._models.resolve(settings.model), instance)
        await engine.start()
        try:
            yield engine
        finally:
            await engine.close()
