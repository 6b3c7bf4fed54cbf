"""The systems to compare: RAGTree, and plain vLLM with the same model, threads and, by default, an equal KV cache.

RAGTree also has host memory and disk below that cache, which is the difference to measure. ``vllm-prefix-equal`` has
as large a KV cache as RAGTree has memory in all.
"""

import tempfile
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Protocol
from uuid import uuid4

import msgspec

from cachectl.runtime.composing import GateFolder
from cachectl.settings import ControllerSettings
from examine.measuring.engines import Generation, generate
from examine.measuring.kv_paths import INSTANCE
from protocol.errors import ConfigError
from protocol.generation import Sampling
from protocol.plans import ControllerStats, DocumentOrder, PrefillPlan, Reuse
from protocol.prompts import Prompt
from protocol.tiers import Tier
from ragtree_lab.measuring.baselines import BASELINES, LMCACHE, Steps
from ragtree_lab.measuring.engines import ComparedEngines
from ragtree_lab.measuring.lmcache_server import lmcache_server
from ragtree_lab.measuring.local_stack import LocalStack

NAMESPACE = "benchmark"
OURS = "ragtree"
OURS_EXACT = "ragtree-exact"
"""Our system, composing nothing."""

FIRST_TOKEN = Sampling(1)


class Answer(Protocol):
    """Answers a prompt, by default with one token."""

    def __call__(
        self, prompt: Prompt, sampling: Sampling = FIRST_TOKEN, scores: tuple[float, ...] = ()
    ) -> Awaitable[Generation]:
        """Answer. ``scores`` are those of the search for the documents, if known. Raises what the system raises."""


class System(msgspec.Struct, frozen=True):
    """A running system that answers prompts.

    ``settle`` waits until no background work is left. ``cache_tokens`` is the size of the engine's KV cache,
    ``memory_tokens`` the room by tier, ``stats`` the controller's; only our system has these three.
    """

    answer: Answer
    settle: Callable[[], Awaitable[object]]
    cache_tokens: int = 0
    memory_tokens: dict[Tier, int] = {}
    stats: Callable[[], Awaitable[ControllerStats]] | None = None

    @property
    def ram_tokens(self) -> int:
        """The tokens of KV that fit into memory: the engine's KV cache and host memory."""
        return self.cache_tokens + self.memory_tokens.get(Tier.HOST, 0)


class Systems:
    """Starts systems by name. ``kv`` overrides our ``KvSettings``. Without ``gates``, composing passes no gate."""

    def __init__(
        self,
        engines: ComparedEngines,
        controller: ControllerSettings,
        profiles: Path,
        gates: GateFolder | None = None,
        **kv: Any,  # noqa: ANN401
    ) -> None:
        self._engines = engines
        self._controller = controller
        self._profiles = profiles
        self._gates = gates
        self._kv = kv

    @asynccontextmanager
    async def running(self, name: str, steps: Steps = Steps.OURS, ram_tokens: int = 0) -> AsyncGenerator[System]:
        """Run a system, ours or one of ``BASELINES``, while the context is open.

        ``ram_tokens`` is the size of the KV cache of a baseline with equal memory. Raises what its engine raises.
        """
        if name == OURS:
            async with self.ours() as system:
                yield system
            return
        baseline = BASELINES[name]
        kv_tokens = ram_tokens if baseline.equal_memory else None
        async with (
            self._offloading(baseline.offloading) as offloading,
            self._engines.plain(baseline.prefix_caching, {**steps.engine_args, **offloading}, kv_tokens) as engine,
        ):

            async def answer(
                prompt: Prompt,
                sampling: Sampling = FIRST_TOKEN,
                scores: tuple[float, ...] = (),  # noqa: ARG001
            ) -> Generation:
                return await generate(engine, PrefillPlan(uuid4().hex, INSTANCE, NAMESPACE, prompt), sampling)

            yield System(answer, _nothing, ram_tokens if baseline.equal_memory or baseline.offloading else 0)

    @asynccontextmanager
    async def _offloading(self, backend: str) -> AsyncGenerator[dict[str, Any]]:
        """What offloads KV to as much host memory as ours while the context is open, as arguments of vLLM's."""
        host_gib = self._engines.kv_settings(**self._kv).host_gib
        if backend == LMCACHE:
            async with lmcache_server(host_gib) as arguments:
                yield arguments
        else:
            yield {"kv_offloading_backend": backend, "kv_offloading_size": host_gib} if backend else {}

    @asynccontextmanager
    async def ours(
        self,
        order: DocumentOrder = DocumentOrder.RETRIEVAL,
        disk_share: float = 1.0,
        reuse: Reuse = Reuse.EXACT,
    ) -> AsyncGenerator[System]:
        """Run RAGTree with an empty cache; prompts get their documents in ``order``, and may use KV as ``reuse`` says.

        It uses only ``disk_share`` of the configured disk space. Raises what its engine raises, and ConfigError if the
        engine keeps no KV.
        """
        kv_settings = self._engines.kv_settings(**self._kv)
        disk_gib = kv_settings.disk_gib * disk_share
        with tempfile.TemporaryDirectory(prefix="ragtree-bench-") as folder:
            async with (
                self._engines.caching(Path(folder), **{**self._kv, "disk_gib": disk_gib}) as engine,
                LocalStack.over({INSTANCE: engine}, self._controller, self._profiles, self._gates) as stack,
            ):

                async def answer(
                    prompt: Prompt, sampling: Sampling = FIRST_TOKEN, scores: tuple[float, ...] = ()
                ) -> Generation:
                    return await stack.answer(prompt, NAMESPACE, sampling, order, scores, reuse)

                kv = (await engine.info()).kv
                if kv is None:
                    raise ConfigError("the engine keeps no KV, so there is nothing to measure", "generator.kv")
                share = kv_settings.gpu_share
                pages = {Tier.GPU: kv.gpu_pages, Tier.HOST: kv.host_pages, Tier.DISK: kv.disk_pages}
                yield System(
                    answer,
                    stack.settle,
                    int(kv.gpu_pages / share) * kv.page_tokens if share else 0,
                    {tier: count * kv.page_tokens for tier, count in pages.items()},
                    stack.stats,
                )


async def _nothing() -> None:
    pass
