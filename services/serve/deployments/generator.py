"""The generator as a Ray Serve deployment."""

from collections.abc import AsyncGenerator
from contextlib import aclosing

from ray import serve

from protocol.errors import EngineDied
from protocol.generation import EngineInfo, GenerationStep, PrefillCost, Sampling
from protocol.kv import LostCopy, Orders, ResidencyReport
from protocol.plans import PrefillPlan
from protocol.timing import StreamClock, StreamTiming
from services.config import Config
from services.model import generator_factory


class GeneratorDeployment:
    """Holds an engine. A replica whose engine died fails its health check, and Serve puts a new one in its place."""

    async def __init__(self, config: Config) -> None:  # type: ignore[misc]  # Serve awaits it
        config.observability.configure_logging()
        self._instance: str = serve.get_replica_context().replica_id.unique_id
        self._engine = generator_factory(config).engine(self._instance)
        await self._engine.start()

    async def stream(self, plan: PrefillPlan, sampling: Sampling) -> AsyncGenerator[GenerationStep, None]:
        """Generate for a plan."""
        self._require_meant()
        async with aclosing(self._engine.stream(plan, sampling)) as steps:
            async for step in steps:
                yield step

    async def end(self, plan_id: str) -> None:
        """End a speculative plan's stream."""
        self._require_meant()
        await self._engine.end(plan_id)

    async def carry_out(self, orders: Orders) -> tuple[LostCopy, ...]:
        """Carry out orders outside of any plan."""
        self._require_meant()
        return await self._engine.carry_out(orders)

    async def residency(self) -> tuple[ResidencyReport, ...]:
        """What the tiers hold."""
        self._require_meant()
        return await self._engine.residency()

    async def info(self) -> EngineInfo:
        """What is served."""
        self._require_meant()
        return await self._engine.info()

    async def metrics(self) -> dict[str, str]:
        """What the engine counts."""
        self._require_meant()
        return await self._engine.metrics()

    async def ready(self) -> None:
        """Return when plans can be executed."""
        await self._engine.ready()

    async def probe_prefill(self, cached_tokens: int, new_tokens: int) -> PrefillCost:
        """Measure one prefill."""
        return await self._engine.probe_prefill(cached_tokens, new_tokens)

    async def time_stream(self, plan: PrefillPlan, max_tokens: int) -> StreamTiming:
        """The times of a plan's stream, measured beside the engine: the baseline of the stack's overhead."""
        texts = StreamClock()
        async with aclosing(self._engine.stream(plan, Sampling(max_tokens=max_tokens))) as steps:
            async for step in steps:
                if step.text or (step.finish_reason is not None and not texts.started):
                    texts.arrived()
        return texts.timing()

    async def check_health(self) -> None:
        """Serve's periodic call. Raises when the engine is gone."""
        await self._engine.ready()

    def _require_meant(self) -> None:
        """Raises EngineDied for a call that another instance was meant by: Serve does not route to that any more."""
        named = serve.get_multiplexed_model_id()
        if named and named != self._instance:
            raise EngineDied("the generator's instance ends, or is gone")

    async def __del__(self) -> None:
        """Serve's call before it ends the replica."""
        await self._engine.close()
