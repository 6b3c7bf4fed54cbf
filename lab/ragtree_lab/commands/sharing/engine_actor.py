"""An engine in a process of its own: a Ray actor, and the handle that calls it."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, aclosing
from pathlib import Path
from typing import Any

import ray

from examine.measuring.engines import Generation, generate
from protocol.errors import EngineDied
from protocol.generation import GenerationStep, Sampling
from protocol.plans import PrefillPlan
from ragtree_lab.measuring.engines import ComparedEngines
from ragtree_lab.sharing.machines import TimedEngine
from services.serve.caller import translated
from services.serve.forwarding import forwarding, serves


@serves(TimedEngine, "_engine")
class EngineActor:
    """Runs the stack's engine as ``instance``, with the disk tier in ``folder``; ``options`` are those of ``caching``.

    Where it stands in a stack, ``GeneratorDeployment`` does.
    """

    def __init__(self, maker: ComparedEngines, folder: Path, instance: str, options: dict[str, Any]) -> None:
        self._making = maker.caching(folder, instance=instance, **options)
        self._running = AsyncExitStack()

    async def start(self) -> None:
        """Load the model. Raises what the engine raises."""
        self._engine = await self._running.enter_async_context(self._making)

    async def close(self) -> None:
        """End the engine, and free its host memory."""
        await self._running.aclose()

    # Behind a forwarding method, Ray would see that of the contract, which is no generator.
    async def stream(self, plan: PrefillPlan, sampling: Sampling) -> AsyncGenerator[GenerationStep, None]:
        """Generate for a plan."""
        async with aclosing(self._engine.stream(plan, sampling)) as steps:
            async for step in steps:
                yield step

    async def generate(self, plan: PrefillPlan, sampling: Sampling) -> Generation:
        """Run a plan to its end, timed here."""
        return await generate(self._engine, plan, sampling)


class ActorCaller:
    """Calls methods of an actor by name, as a Serve handle does those of a deployment."""

    def __init__(self, actor: Any) -> None:  # noqa: ANN401 - Ray has no types
        self._actor = actor

    async def call(self, method: str, *arguments: object, **named: object) -> Any:  # noqa: ANN401 - the method's
        """Return the method's result. Raises what the method raises, and EngineDied if the actor is gone."""
        answer = getattr(self._actor, method).remote(*arguments, **named)
        try:
            return await answer
        except asyncio.CancelledError:
            ray.cancel(answer)
            raise
        except Exception as error:
            raise translated(error, "engine", EngineDied) from error

    async def stream(self, method: str, *arguments: object, **named: object) -> AsyncGenerator[Any, None]:
        """Yield what the method yields. Closing the iterator cancels the method. Raises as ``call`` does."""
        answers = getattr(self._actor, method).options(num_returns="streaming").remote(*arguments, **named)
        ended = False
        try:
            async for answer in answers:
                yield await answer
            ended = True
        except Exception as error:
            ended = True
            raise translated(error, "engine", EngineDied) from error
        finally:
            if not ended:
                ray.cancel(answers)

    async def ready(self) -> None:
        """Return when plans can be executed."""
        await self.call("ready")


def engine_handle(caller: ActorCaller) -> TimedEngine:
    """Make the handle of an engine that has started."""
    return forwarding(TimedEngine, caller)  # type: ignore[type-abstract]
