"""The systems to compare: RAGTree, and plain vLLM with equal flags and an equal KV cache.

RAGTree also has host memory and disk below that cache, which is the difference to measure.
"""

import tempfile
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import msgspec

from benchmarks.measuring.engines import INSTANCE, EngineMaker, Generation, generate
from benchmarks.measuring.local_stack import LocalStack
from cachectl.settings import ControllerSettings
from protocol.errors import ConfigError
from protocol.plans import ControllerStats, DocumentOrder, PrefillPlan
from protocol.prompts import Prompt
from protocol.tiers import Tier

NAMESPACE = "benchmark"
OURS = "ragtree"
BASELINES = {"vllm": False, "vllm-prefix": True}
"""Baselines by name, and whether vLLM's own prefix cache is on."""


class System(msgspec.Struct, frozen=True):
    """A running system that answers prompts, by default with one token.

    ``settle`` waits until no background work is left. ``cache_tokens`` is the size of the engine's KV cache,
    ``memory_tokens`` the room by tier, ``stats`` the controller's; only our system has these three.
    """

    answer: Callable[[Prompt], Awaitable[Generation]]
    settle: Callable[[], Awaitable[object]]
    cache_tokens: int = 0
    memory_tokens: dict[Tier, int] = {}
    stats: Callable[[], Awaitable[ControllerStats]] | None = None


def check_baselines(names: Sequence[str]) -> None:
    """Raises ConfigError for names that are no baselines, or repeated."""
    if unknown := set(names) - BASELINES.keys():
        raise ConfigError(
            f"unknown baseline {', '.join(sorted(unknown))}; the baselines are {', '.join(BASELINES)}", "against"
        )
    if len(set(names)) < len(names):
        raise ConfigError(f"a baseline is repeated in {', '.join(names)}", "against")


class Systems:
    """Starts systems by name. ``kv`` overrides our ``KvSettings``."""

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
        """Run a system, ours or one of ``BASELINES``, while the context is open. Raises what its engine raises."""
        if name == OURS:
            async with self.ours() as system:
                yield system
            return
        async with self._engines.plain(prefix_caching=BASELINES[name]) as engine:

            async def answer(prompt: Prompt) -> Generation:
                return await generate(engine, PrefillPlan(uuid4().hex, "generator", NAMESPACE, prompt), 1)

            yield System(answer, _nothing)

    @asynccontextmanager
    async def ours(self, order: DocumentOrder = DocumentOrder.RETRIEVAL, max_tokens: int = 1) -> AsyncGenerator[System]:
        """Run RAGTree with an empty cache; prompts get their documents in ``order``, and ``max_tokens`` tokens.

        Raises what its engine raises, and ConfigError if the engine keeps no KV.
        """
        with tempfile.TemporaryDirectory(prefix="ragtree-bench-") as folder:
            async with (
                self._engines.caching(Path(folder), **self._kv) as engine,
                LocalStack.over({INSTANCE: engine}, self._controller, self._profiles) as stack,
            ):

                async def answer(prompt: Prompt) -> Generation:
                    return await stack.answer(prompt, NAMESPACE, max_tokens, order=order)

                kv = (await engine.info()).kv
                if kv is None:
                    raise ConfigError("the engine keeps no KV, so there is nothing to measure", "generator.kv")
                share = self._engines.gpu_share
                pages = {Tier.GPU: kv.gpu_pages, Tier.HOST: kv.host_pages, Tier.DISK: kv.disk_pages}
                yield System(
                    answer,
                    # Answers only after all pending copies.
                    engine.residency,
                    int(kv.gpu_pages / share) * kv.page_tokens if share else 0,
                    {tier: count * kv.page_tokens for tier, count in pages.items()},
                    stack.stats,
                )


async def _nothing() -> None:
    pass
