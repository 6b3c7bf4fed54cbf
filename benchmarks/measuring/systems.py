"""Systems that the same prompts are sent to: RAGTree, and plain vLLM with equal flags and an equal KV cache.

Below that cache ours has host memory and disk, which is what there is to compare. On CUDA it also has vLLM's async
scheduling off, as its connector wants it, and the others have it on.
"""

import tempfile
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import msgspec

from benchmarks.measuring.engines import EngineMaker, Generation, generate
from benchmarks.measuring.local_stack import LocalStack
from cachectl.settings import ControllerSettings
from protocol.errors import ConfigError
from protocol.plans import ControllerStats, DocumentOrder, PrefillPlan
from protocol.prompts import Prompt
from protocol.tiers import Tier

NAMESPACE = "benchmark"
OURS = "ragtree"
BASELINES = {"vllm": False, "vllm-prefix": True}
"""Baselines by name, and whether vLLM's own prefix cache is on in them."""


class System(msgspec.Struct, frozen=True):
    """A system that runs and answers prompts, with one token where nothing else is said.

    ``settle`` waits until nothing goes on behind its answers. ``cache_tokens`` is what its engine's KV cache holds,
    ``memory_tokens`` what it can keep by tier, and ``stats`` its controller's, all three told by ours alone.
    """

    answer: Callable[[Prompt], Awaitable[Generation]]
    settle: Callable[[], Awaitable[object]]
    cache_tokens: int = 0
    memory_tokens: dict[Tier, int] = {}
    stats: Callable[[], Awaitable[ControllerStats]] | None = None


def check_baselines(names: Sequence[str]) -> None:
    """Raises ConfigError for names that are no baselines, or the same twice."""
    if unknown := set(names) - BASELINES.keys():
        raise ConfigError(
            f"there is no baseline {', '.join(sorted(unknown))}; there are {', '.join(BASELINES)}", "against"
        )
    if len(set(names)) < len(names):
        raise ConfigError(f"each baseline once, and not {', '.join(names)}", "against")


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
        """A system, ours or one of ``BASELINES``, until it is left. Raises what its engine raises."""
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
        """RAGTree with nothing cached, until it is left: prompts get their documents in ``order``, and ``max_tokens``.

        Raises what its engine raises, and ConfigError for one that keeps no KV.
        """
        with tempfile.TemporaryDirectory(prefix="ragtree-bench-") as folder:
            async with (
                self._engines.caching(Path(folder), **self._kv) as engine,
                LocalStack.over(engine, self._controller, self._profiles) as stack,
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
                    # It answers behind all copies that are on their way.
                    engine.residency,
                    int(kv.gpu_pages / share) * kv.page_tokens if share else 0,
                    {tier: count * kv.page_tokens for tier, count in pages.items()},
                    stack.stats,
                )


async def _nothing() -> None:
    pass
