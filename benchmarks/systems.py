"""Systems that the same prompts are sent to: RAGTree, and plain vLLM with the same flags and the same KV memory."""

import tempfile
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import msgspec

from benchmarks.engines import EngineMaker, Generation, generate
from benchmarks.local_stack import LocalStack
from cachectl.settings import ControllerSettings
from generator.vllm_engine import VllmEngine
from protocol.errors import ConfigError
from protocol.plans import PrefillPlan
from protocol.prompts import Prompt
from protocol.tiers import Tier

NAMESPACE = "benchmark"
OURS = "ragtree"
BASELINES = {"vllm": False, "vllm-prefix": True}
"""Baselines by name, and whether vLLM's own prefix cache is on in them."""


class System(msgspec.Struct, frozen=True):
    """A system that runs: asked a prompt, it answers with one token.

    ``memory_tokens`` is what it can keep by tier, if it is ours.
    """

    answer: Callable[[Prompt], Awaitable[Generation]]
    memory_tokens: dict[Tier, int]


class Systems:
    """Starts systems by their names. ``kv`` are ``KvSettings`` of ours to be other than usual."""

    def __init__(
        self,
        engines: EngineMaker,
        controller: ControllerSettings,
        profiles: Path,
        **kv: Any,  # noqa: ANN401
    ) -> None:
        self._engines = engines
        self._controller = controller
        self._profiles = profiles
        self._kv = kv

    @asynccontextmanager
    async def running(self, name: str) -> AsyncGenerator[System]:
        """A system, until it is left. Raises ConfigError for one that does not exist, and what its engine raises."""
        if name == OURS:
            async with self._ours() as system:
                yield system
            return
        if name not in BASELINES:
            raise ConfigError(f"there is no baseline {name}; there are {', '.join(BASELINES)}", "against")
        async with self._engines.plain(prefix_caching=BASELINES[name]) as engine:

            async def answer(prompt: Prompt) -> Generation:
                return await generate(engine, PrefillPlan(uuid4().hex, "generator", NAMESPACE, prompt), 1)

            yield System(answer, {})

    @asynccontextmanager
    async def _ours(self) -> AsyncGenerator[System]:
        with tempfile.TemporaryDirectory(prefix="ragtree-bench-") as folder:
            async with (
                self._engines.caching(Path(folder), **self._kv) as engine,
                LocalStack.over(engine, self._controller, self._profiles) as stack,
            ):

                async def answer(prompt: Prompt) -> Generation:
                    return await stack.answer(prompt, NAMESPACE, 1)

                yield System(answer, await _memory_tokens(engine))


async def _memory_tokens(engine: VllmEngine) -> dict[Tier, int]:
    kv = (await engine.info()).kv
    if kv is None:
        return {}
    pages = {Tier.GPU: kv.gpu_pages, Tier.HOST: kv.host_pages, Tier.DISK: kv.disk_pages}
    return {tier: count * kv.page_tokens for tier, count in pages.items()}
