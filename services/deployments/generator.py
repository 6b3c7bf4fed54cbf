"""The generator as a Ray Serve deployment."""

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing

from protocol.errors import EngineDied
from protocol.generation import EngineInfo, GenerationStep, PrefillCost, Sampling
from protocol.kv import LostCopy, Orders, ResidencyReport
from protocol.plans import PrefillPlan
from services.config import Config
from services.model import generator_factory


class GeneratorDeployment:
    """Holds an engine. A replica whose engine died fails its health check, and Serve puts a new one in its place."""

    async def __init__(self, config: Config) -> None:  # type: ignore[misc]  # Serve awaits it
        config.observability.configure_logging()
        self._engine = generator_factory(config).engine()
        await self._engine.start()

    async def stream(self, plan: PrefillPlan, sampling: Sampling) -> AsyncGenerator[GenerationStep, None]:
        """Generate for a plan."""
        async with aclosing(self._engine.stream(plan, sampling)) as steps:
            async for step in steps:
                yield step

    async def end(self, plan_id: str) -> None:
        """End a speculative plan's stream."""
        await self._engine.end(plan_id)

    async def carry_out(self, orders: Orders) -> tuple[LostCopy, ...]:
        """Carry out orders outside of any plan."""
        return await self._engine.carry_out(orders)

    async def residency(self) -> tuple[ResidencyReport, ...]:
        """What the tiers hold."""
        return await self._engine.residency()

    async def info(self) -> EngineInfo:
        """What is served."""
        return await self._engine.info()

    async def metrics(self) -> dict[str, str]:
        """What the engine counts."""
        return await self._engine.metrics()

    async def ready(self) -> None:
        """Return when plans can be executed."""
        await self._engine.ready()

    async def probe_prefill(self, cached_tokens: int, new_tokens: int) -> PrefillCost:
        """Measure one prefill."""
        return await self._engine.probe_prefill(cached_tokens, new_tokens)

    async def time_to_first_token(self, plan: PrefillPlan) -> float:
        """Seconds to the first token of a plan, measured beside the engine: the baseline of the stack's overhead."""
        began = time.perf_counter()
        async with aclosing(self._engine.stream(plan, Sampling(max_tokens=1))) as steps:
            async for _ in steps:
                return time.perf_counter() - began
        raise EngineDied("the stream ended without a token")

    async def check_health(self) -> None:
        """Serve's periodic call. Raises when the engine is gone."""
        await self._engine.ready()

    async def __del__(self) -> None:
        """Serve's call before it ends the replica."""
        await self._engine.close()
