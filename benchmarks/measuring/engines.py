"""Engines to measure side by side: the stack's own with its connector, and plain vLLM with equal flags and KV cache."""

import os
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec

from generator.engines.vllm_engine import VllmEngine
from generator.models import ModelStore
from generator.settings import GeneratorSettings, KvSettings
from protocol.errors import EngineDied
from protocol.generation import PrefillResult, Sampling, TokenLogprob
from protocol.plans import PrefillPlan

_BLOCK = 32
"""Tokens of a block where the size of the KV cache is given."""


def kv_cache_of(tokens: int) -> dict[str, int]:
    """VLLM's arguments for a KV cache of so many tokens, in whole blocks."""
    return {"block_size": _BLOCK, "num_gpu_blocks_override": tokens // _BLOCK}


class Generation(msgspec.Struct, frozen=True):
    """What came of one plan: milliseconds to the first token as its caller saw them, the prefill, and the answer.

    ``tokens`` counts the answer's.
    """

    ttft_ms: float
    prefill: PrefillResult
    text: str
    logprobs: tuple[TokenLogprob, ...]
    tokens: int = 0


async def generate(
    engine: VllmEngine,
    plan: PrefillPlan,
    max_tokens: int,
    logprobs: bool = False,
    on_prefill: Callable[[PrefillResult], Awaitable[None]] | None = None,
) -> Generation:
    """Run a plan to its end, greedily; ``on_prefill`` hears of the first token. Raises what the engine raises."""
    began = time.perf_counter()
    first_s: float | None = None
    prefill: PrefillResult | None = None
    text = ""
    tokens = 0
    chosen: list[TokenLogprob] = []
    sampling = Sampling(max_tokens=max_tokens, logprobs=logprobs)
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
    if first_s is None or prefill is None:
        raise EngineDied("the stream ended without a token")
    return Generation(first_s * 1000, prefill, text, tuple(chosen), tokens)


class EngineMaker:
    """Makes engines of one model with one set of flags, each with its own way to keep KV.

    Only one of them works at a time, so each has all cores, whatever the settings leave to the rest of the stack.
    ``at_once`` of them share what the settings give one engine of a GPU's memory. ``kv_tokens`` is what the KV cache of
    each holds, where it should not depend on the machine or on the type of numbers; otherwise what fits.
    """

    def __init__(
        self, settings: GeneratorSettings, models: ModelStore, at_once: int = 1, kv_tokens: int | None = None
    ) -> None:
        cache = kv_cache_of(kv_tokens) if kv_tokens is not None else {}
        self._settings = settings.model_copy(
            update={
                "cpu_threads": len(os.sched_getaffinity(0)),
                "gpu_memory_utilization": settings.gpu_memory_utilization / at_once,
                "engine_args": {**settings.engine_args, **cache},
            }
        )
        self._models = models

    @property
    def gpu_share(self) -> float:
        """The share of an engine's KV cache that documents may hold."""
        return self._settings.kv.gpu_share

    @asynccontextmanager
    async def plain(self, prefix_caching: bool = True) -> AsyncGenerator[VllmEngine]:
        """VLLM without the connector, with its own prefix cache or without."""
        async with self._running(KvSettings(enabled=False), {"enable_prefix_caching": prefix_caching}) as engine:
            yield engine

    @asynccontextmanager
    async def caching(
        self,
        folder: Path,
        *,
        keep_host: bool = False,
        engine_args: Mapping[str, Any] = MappingProxyType({}),
        **kv: Any,  # noqa: ANN401
    ) -> AsyncGenerator[VllmEngine]:
        """The stack's engine; its KV on disk goes into ``folder``, ``kv`` are ``KvSettings`` to be other than usual.

        ``engine_args`` are vLLM's own. ``keep_host`` leaves host memory for the next engine of this folder.
        """
        settings = self._settings.kv.model_copy(update={"disk_dir": folder, **kv})
        try:
            async with self._running(settings, engine_args) as engine:
                yield engine
        finally:
            if not keep_host:
                settings.discard_host_memory()

    @asynccontextmanager
    async def _running(self, kv: KvSettings, arguments: Mapping[str, Any]) -> AsyncGenerator[VllmEngine]:
        settings = self._settings.model_copy(
            update={"kv": kv, "engine_args": {**self._settings.engine_args, **arguments}}
        )
        engine = VllmEngine(settings, self._models.resolve(settings.model))
        await engine.start()
        try:
            yield engine
        finally:
            await engine.close()
