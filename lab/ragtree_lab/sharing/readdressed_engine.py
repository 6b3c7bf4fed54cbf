"""An engine as the controller sees it if its KV is served elsewhere, or not at all."""

from collections.abc import AsyncGenerator
from contextlib import aclosing

from msgspec.structs import replace

from cachectl.runtime.executor import LiveEngine
from protocol.generation import EngineInfo, GenerationStep, PrefillCost, Sampling
from protocol.kv import LostCopy, Orders, ResidencyReport
from protocol.plans import PrefillPlan


class ReaddressedEngine:
    """An engine that says that it serves its KV at ``addresses``; with none, nobody reads it.

    Implements ``LiveEngine``. All else is the engine's.
    """

    def __init__(self, engine: LiveEngine, *addresses: str) -> None:
        self._engine = engine
        self._addresses = addresses

    async def info(self) -> EngineInfo:
        """The engine's own, but for the addresses."""
        info = await self._engine.info()
        if info.kv is None:
            return info
        return replace(info, kv=replace(info.kv, peers=replace(info.kv.peers, addresses=self._addresses)))

    async def stream(self, plan: PrefillPlan, sampling: Sampling) -> AsyncGenerator[GenerationStep, None]:
        """Generate for a plan."""
        async with aclosing(self._engine.stream(plan, sampling)) as steps:
            async for step in steps:
                yield step

    async def check(self, sampling: Sampling, caller: str) -> None:
        """Check a sampling."""
        await self._engine.check(sampling, caller)

    async def end(self, plan_id: str) -> None:
        """End a speculative plan's stream."""
        await self._engine.end(plan_id)

    async def carry_out(self, orders: Orders) -> tuple[LostCopy, ...]:
        """Carry out orders."""
        return await self._engine.carry_out(orders)

    async def load_adapter(self, name: str, source: str) -> str:
        """Load an adapter."""
        return await self._engine.load_adapter(name, source)

    async def unload_adapter(self, name: str) -> None:
        """Unload an adapter."""
        await self._engine.unload_adapter(name)

    async def residency(self) -> tuple[ResidencyReport, ...]:
        """What the tiers hold."""
        return await self._engine.residency()

    async def metrics(self) -> dict[str, str]:
        """The metrics of vLLM."""
        return await self._engine.metrics()

    async def ready(self) -> None:
        """Return when plans can be executed."""
        await self._engine.ready()

    async def probe_prefill(self, cached_tokens: int, new_tokens: int) -> PrefillCost:
        """Measure a prefill."""
        return await self._engine.probe_prefill(cached_tokens, new_tokens)
