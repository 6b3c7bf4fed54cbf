"""The generator as a Ray Serve deployment."""

import os
from contextlib import aclosing

from ray import serve
from ray.util import get_node_ip_address

from generator.engines.engine import Engine
from protocol.errors import EngineDied
from protocol.generation import PrefillCost, Sampling
from protocol.parts import Generator
from protocol.plans import PrefillPlan
from protocol.timing import StreamClock, StreamTiming
from services.cluster.machine import on_this_machine
from services.config import Config
from services.model import generator_factory
from services.serve.forwarding import serves


@serves(Generator, "_addressed")
class GeneratorDeployment:
    """Runs an engine. If the engine dies, the health check fails and Serve replaces the replica."""

    async def __init__(self, config: Config) -> None:  # type: ignore[misc]  # Serve awaits it
        config.observability.configure_logging()
        # Ray gives a replica that reserves no CPUs one thread. The engine would take that for its user's choice.
        os.environ.pop("OMP_NUM_THREADS", None)
        self._instance: str = serve.get_replica_context().replica_id.unique_id
        self._engine = generator_factory(on_this_machine(config), get_node_ip_address()).engine(self._instance)
        await self._engine.start()

    async def ready(self) -> None:
        """Return when plans can be executed."""
        await self._engine.ready()

    async def probe_prefill(self, cached_tokens: int, new_tokens: int) -> PrefillCost:
        """Measure one prefill."""
        return await self._engine.probe_prefill(cached_tokens, new_tokens)

    async def time_stream(self, plan: PrefillPlan, max_tokens: int) -> StreamTiming:
        """Time a plan's stream next to the engine: the baseline of the stack's overhead."""
        texts = StreamClock()
        async with aclosing(self._engine.stream(plan, Sampling(max_tokens=max_tokens))) as steps:
            async for step in steps:
                if step.text or (step.finish_reason is not None and not texts.started):
                    texts.arrived()
        return texts.timing()

    async def check_health(self) -> None:
        """Serve's periodic health check. Raises if the engine is gone."""
        await self._engine.ready()

    async def __del__(self) -> None:
        """Close the engine. Serve calls this before it ends the replica."""
        await self._engine.close()

    @property
    def _addressed(self) -> Engine:
        """The engine, if the current call names this instance or none.

        Raises EngineDied if it names another: that instance drains or is gone, so Serve routed the call here.
        """
        named = serve.get_multiplexed_model_id()
        if named and named != self._instance:
            raise EngineDied("the instance that this call names is draining or gone", begun=False)
        return self._engine
