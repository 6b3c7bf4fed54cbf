"""Engines to compare in benchmarks: several that work side by side, and vLLM with other arguments."""

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

from examine.measuring.engines import EngineMaker
from examine.measuring.kv_paths import INSTANCE
from generator.engines.vllm_engine import VllmEngine
from generator.models import ModelStore
from generator.settings import GeneratorSettings, KvSettings

_BLOCK = 32
"""Tokens per block if the size of the KV cache is given."""


def kv_cache_of(tokens: int) -> dict[str, int]:
    """Return vLLM's arguments for a KV cache of ``tokens`` tokens, in whole blocks."""
    return {"block_size": _BLOCK, "num_gpu_blocks_override": tokens // _BLOCK}


class ComparedEngines(EngineMaker):
    """Makes engines of one model with the same flags, each with its own way to keep KV.

    Unless stated otherwise, only one engine works at a time. ``at_once`` engines share the GPU memory that the settings
    give to one. ``kv_tokens`` fixes the size of each KV cache, so that it does not depend on the machine or the dtype;
    by default it is what fits.
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
        share = settings.gpu_memory_utilization / at_once
        shared = settings.model_copy(
            update={
                # vLLM refuses to serve prompts that its KV cache could not hold. One block of it stays empty.
                "max_model_len": longest,
                "engine_args": {**settings.engine_args, "gpu_memory_utilization": share, **cache},
            }
        )
        super().__init__(shared, models, threads)

    def threads(self, at_work: int = 1) -> int:
        """Threads of an engine, by the number of engines that work at the same time."""
        return max(1, self._settings.cpu_threads // at_work)

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
        settings = self._with({"enable_prefix_caching": prefix_caching, **cache, **engine_args})
        async with self._running(settings, KvSettings(enabled=False)) as engine:
            yield engine

    @asynccontextmanager
    async def caching(
        self,
        folder: Path,
        *,
        keep_host: bool = False,
        instance: str = INSTANCE,
        at_work: int = 1,
        engine_args: Mapping[str, Any] = MappingProxyType({}),
        **kv: Any,  # noqa: ANN401
    ) -> AsyncGenerator[VllmEngine]:
        """Run the stack's engine as ``instance``. Its disk tier is in ``folder``; ``kv`` overrides ``KvSettings``.

        ``engine_args`` are vLLM's own. ``keep_host`` keeps the host memory for the next engine on this folder.
        ``at_work`` such engines work at the same time, and share the cores.
        """
        settings = self._with(engine_args, at_work)
        async with self._caching(settings, instance, self.kv_settings(disk_dir=folder, **kv), keep_host) as engine:
            yield engine

    def _with(self, engine_args: Mapping[str, Any], at_work: int = 1) -> GeneratorSettings:
        arguments = {**self._settings.engine_args, **engine_args}
        return self._settings.model_copy(update={"cpu_threads": self.threads(at_work), "engine_args": arguments})
