"""Handles: the parts as their callers see them, over Ray Serve.

A handle fulfils a part's contract (``protocol.parts``). Retriever and controller forward every call. The generator's
handle adds routing, because each plan names its instance.
"""

import asyncio
from collections.abc import AsyncGenerator, Collection
from contextlib import aclosing, suppress

from ray import serve
from ray.serve.handle import DeploymentHandle

from cachectl.costs.profiling import PrefillProbe
from protocol.errors import EngineDied, RetrieverNotReady, Unavailable
from protocol.generation import GenerationStep, Sampling
from protocol.parts import Controller, Generator
from protocol.plans import PrefillPlan
from protocol.timing import StreamTiming
from retriever.sharding.shard_group import Shard
from services.serve.caller import PATIENCE_S, DeploymentCaller, replicas_of
from services.serve.forwarding import forwarded, forwarding
from services.serve.replica_caller import ReplicaCaller


def retriever_handle(name: str) -> Shard:
    """Make the handle of the retriever, or of one shard, by its application's name."""
    caller = ReplicaCaller(DeploymentCaller(_deployed(name), name, RetrieverNotReady), Shard)
    return forwarding(Shard, caller)  # type: ignore[type-abstract]


def controller_handle(name: str) -> Controller:
    """Make the handle of the controller, or of one shard, by its application's name."""
    caller = ReplicaCaller(DeploymentCaller(_deployed(name), "controller", Unavailable), Controller)
    return forwarding(Controller, caller)  # type: ignore[type-abstract]


def _deployed(name: str) -> DeploymentHandle:
    return serve.get_deployment_handle(name, app_name=name)


class GeneratorHandle:
    """Handle of the generator, or of one of its instances. Fulfils ``LiveInstances`` of the controller.

    A plan goes to the instance that it names. A call that names none goes to any instance.
    """

    def __init__(self, caller: ReplicaCaller) -> None:
        self.caller = caller
        self._at: dict[str, GeneratorHandle] = {}
        # The instance of each plan whose stream is open.
        self._streaming: dict[str, str] = {}

    @classmethod
    def over(cls, name: str) -> "GeneratorHandle":
        """Make the handle of all instances of an application."""
        return cls(ReplicaCaller(DeploymentCaller(_deployed(name), "generator", EngineDied), Generator))

    carry_out = forwarded(Generator.carry_out)
    residency = forwarded(Generator.residency)
    info = forwarded(Generator.info)
    load_adapter = forwarded(Generator.load_adapter)
    unload_adapter = forwarded(Generator.unload_adapter)
    check = forwarded(Generator.check)
    probe_prefill = forwarded(PrefillProbe.probe_prefill)

    def names(self) -> Collection[str]:
        """Return the instances that take plans now; none before the first call."""
        return replicas_of(self.caller.app)

    def at(self, instance: str) -> "GeneratorHandle":
        """Return the handle of one instance. Its calls raise EngineDied if the instance is gone or draining."""
        if instance not in self._at:
            here = self.names()
            self._at = {name: handle for name, handle in self._at.items() if name in here}
            self._at[instance] = GeneratorHandle(self.caller.at(instance))
        return self._at[instance]

    async def stream(self, plan: PrefillPlan, sampling: Sampling) -> AsyncGenerator[GenerationStep, None]:
        """Generate for a plan, on the instance that it names."""
        self._streaming[plan.query_id] = plan.instance
        try:
            async with aclosing(self._caller_at(plan.instance).stream("stream", plan, sampling)) as steps:
                async for step in steps:
                    yield step
        finally:
            del self._streaming[plan.query_id]

    async def end(self, plan_id: str) -> None:
        """End a speculative plan's stream. Does nothing if this handle has no such stream open."""
        instance = self._streaming.get(plan_id)
        if instance is not None:
            await self._caller_at(instance).call("end", plan_id)

    async def metrics(self) -> dict[str, str]:
        """Return the metrics of all instances, less those that do not answer within ``PATIENCE_S`` seconds."""
        callers = [self._caller_at(name) for name in self.names()] or [self.caller]
        asked = [asyncio.create_task(caller.call("metrics")) for caller in callers]
        try:
            await asyncio.wait(asked, timeout=PATIENCE_S)
            answers = [task.result() for task in asked if task.done() and task.exception() is None]
        finally:
            for task in asked:
                task.cancel()
        return {instance: text for answer in answers for instance, text in answer.items()}

    async def ready(self) -> None:
        """Return when plans can be executed."""
        await self.caller.ready()

    async def time_stream(self, plan: PrefillPlan, max_tokens: int) -> StreamTiming:
        """Time a plan's stream inside the engine's process, without any hop between processes."""
        timing: StreamTiming = await self.caller.call("time_stream", plan, max_tokens)
        return timing

    def _caller_at(self, instance: str) -> ReplicaCaller:
        return self.at(instance).caller if instance else self.caller


class ServedInstances:
    """``LiveInstances`` over the handle of the generator and, if there are any, that of the KV generators."""

    def __init__(self, generator: GeneratorHandle, kv_generator: GeneratorHandle | None = None) -> None:
        self._generator = generator
        self._kv_generator = kv_generator

    def names(self) -> Collection[str]:
        """Return the instances that take plans now."""
        return {*self._generator.names(), *self.kv_generators()}

    def kv_generators(self) -> Collection[str]:
        """Return those that only generate KV."""
        return self._kv_generator.names() if self._kv_generator is not None else ()

    def at(self, instance: str) -> GeneratorHandle:
        """Return the handle of one instance. Its calls raise EngineDied if the instance is gone or draining."""
        if self._kv_generator is not None and instance in self._kv_generator.names():
            return self._kv_generator.at(instance)
        return self._generator.at(instance)

    async def ready(self) -> None:
        """Return when a generator can execute plans. KV generators may come later, and go."""
        await self._generator.ready()
        if self._kv_generator is not None:
            # Serve tells a handle about its replicas from the first call on.
            with suppress(Unavailable):
                await self._kv_generator.ready()
