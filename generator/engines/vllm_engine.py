"""vLLM behind the engine interface. The same code runs on CUDA and on a CPU."""

import asyncio
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import uuid4

import msgspec
import structlog
from prometheus_client import generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector
from pydantic import ValidationError

from generator.adapters import Adapter, read_adapter
from generator.connector.engine_process import LastSteps
from generator.connector.refusal import UnsupportedByConnector, name_refusal_file, read_refusal
from generator.engines.vllm_adapters import FindAdapter, VllmAdapters
from generator.engines.vllm_arguments import (
    WORKER_EXTENSION,
    engine_arguments,
    prepare_environment,
    step_budget,
    uses_connector,
)
from generator.engines.vllm_orders import VllmOrders
from generator.engines.vllm_requests import VllmRequests
from generator.engines.vllm_sampling import penalised
from generator.engines.vllm_streams import PlanStreams
from generator.grammars.schema_checks import SchemaChecks, engine_vocabulary, remembered_bytes, trial_stack_bytes
from generator.settings import GeneratorSettings
from protocol.errors import ConfigError, EngineNotReady
from protocol.generation import ComposingInfo, EngineInfo, GenerationStep, PrefillCost, Sampling
from protocol.kv import LostCopy, Orders, ResidencyReport, without_adapter
from protocol.plans import PrefillPlan

if TYPE_CHECKING:
    from vllm.v1.engine.async_llm import AsyncLLM

    from generator.connector.report_router import ReportRouter

log = structlog.get_logger(__name__)

_WARM_UP_TOKENS = 64
_METRIC_PREFIX = "vllm:"


class _Running(NamedTuple):
    """The parts of a started engine. ``router`` is None without RAGTree's connector."""

    requests: VllmRequests
    adapters: VllmAdapters
    router: "ReportRouter | None"
    steps: LastSteps | None
    plans: PlanStreams
    orders: VllmOrders
    schemas: SchemaChecks


class VllmEngine:
    """One vLLM ``AsyncLLM`` with its model. Its own prefix cache is on, salted with the plan's namespace.

    ``instance`` is the engine's name in plans. If KV is kept, RAGTree's connector executes the plans inside vLLM. Each
    of the ``adapters`` serves the plans of its namespaces. Those that come later are found by ``find_adapter``, and
    without it in absolute folders.
    """

    def __init__(
        self,
        settings: GeneratorSettings,
        folder: Path,
        instance: str = "generator",
        adapters: Sequence[Adapter] = (),
        find_adapter: FindAdapter | None = None,
    ) -> None:
        self._settings = settings
        self._folder = folder
        self._instance = instance
        self._adapters = tuple(adapters)
        self._find_adapter = find_adapter or (lambda name, place: read_adapter(name, Path(place), folder))
        self._info = EngineInfo(model=settings.model, engine="vllm", max_model_len=settings.max_model_len)
        self._running: _Running | None = None

    async def start(self) -> None:
        """Load the model, and keep its KV if the connector supports it and ``kv.enabled`` does not forbid it.

        Raises ConfigError if vLLM refuses the model or its arguments, UnsupportedByConnector if KV must be kept and the
        connector cannot.
        """
        prepare_environment(self._settings)
        try:
            await self._start(self._settings)
            return
        except UnsupportedByConnector as refusal:
            if self._settings.kv.enabled != "auto":
                raise
            why = refusal.message
        # Not while the error is handled, which keeps what the first start has loaded.
        log.warning("kv_not_kept", why=why)
        without = self._settings.kv.model_copy(update={"enabled": False})
        await self._start(self._settings.model_copy(update={"kv": without}))
        self._info = msgspec.structs.replace(self._info, not_kept=why)

    async def _start(self, settings: GeneratorSettings) -> None:
        # Imported late, because the module imports vLLM.
        from generator.connector.report_router import ReportRouter

        arguments = engine_arguments(settings, self._folder, self._instance, self._adapters)
        router = ReportRouter() if uses_connector(arguments) else None
        # Not a local variable here: a failed import inside vLLM keeps this frame, and with it a closed engine.
        steps = LastSteps() if router is not None else None
        try:
            self._running = await self._warmed_up(self._load(arguments, router, steps), router, steps)
        except BaseException:
            if steps is not None:
                steps.close()
            raise

    async def close(self) -> None:
        """Abort what runs, which ends its streams with EngineDied, and end the engine's process. Idempotent."""
        running, self._running = self._running, None
        if running is not None:
            running.schemas.close()
            running.adapters.close()
            await running.requests.close()
            if running.router is not None:
                running.router.fail()
            if running.steps is not None:
                running.steps.close()

    async def ready(self) -> None:
        """Raise EngineNotReady before ``start`` and after ``close``, EngineDied once the engine's process is gone."""
        self._parts().requests.check()

    async def info(self) -> EngineInfo:
        """The served model and the engine's limits."""
        if self._running is None:
            return self._info
        return msgspec.structs.replace(self._info, adapters=dict(self._running.adapters.served))

    async def metrics(self) -> dict[str, str]:
        """The metrics that vLLM keeps, by instance. Raises EngineNotReady."""
        self._parts()
        # In a thread, because it renders hundreds of lines and this loop delivers tokens.
        return {self._instance: await asyncio.to_thread(_exposition)}

    async def stream(self, plan: PrefillPlan, sampling: Sampling) -> AsyncGenerator[GenerationStep, None]:
        """Prefill a plan's prompt and stream the answer. Closing the iterator aborts the request in vLLM.

        A schema that this engine has not checked yet is checked first, for the plan's namespace.
        """
        await self._check_schema(sampling, without_adapter(plan.namespace))
        sampling = penalised(sampling, self._settings.frequency_penalty)
        async with aclosing(self._parts().plans.stream(plan, sampling)) as steps:
            async for step in steps:
                yield step

    async def check(self, sampling: Sampling, caller: str) -> None:
        """Check a sampling as vLLM will, its schema in a confined process first."""
        requests = self._parts().requests
        requests.check()
        await self._check_schema(sampling, caller)
        await requests.check_sampling(sampling)

    async def end(self, plan_id: str) -> None:
        """Abort a speculative plan's request in vLLM, which does so between two steps."""
        self._parts().plans.end(plan_id)

    async def carry_out(self, orders: Orders) -> tuple[LostCopy, ...]:
        """Carry out orders outside of plans to their end, as ``VllmOrders`` says."""
        return await self._parts().orders.carry_out(orders)

    async def load_adapter(self, name: str, source: str) -> str:
        """Load an adapter while others are served, as ``VllmAdapters`` says."""
        return await self._parts().adapters.load(name, source)

    async def unload_adapter(self, name: str) -> None:
        """Unload an adapter that was loaded while the engine ran."""
        await self._parts().adapters.unload(name)

    async def residency(self) -> tuple[ResidencyReport, ...]:
        """What the tiers report to hold."""
        return await self._parts().orders.residency()

    async def probe_prefill(self, cached_tokens: int, new_tokens: int) -> PrefillCost:
        """Time one token after a prompt. vLLM caches whole blocks, so up to one block less is really cached."""
        return await _probe_prefill(self._parts().requests, cached_tokens, new_tokens)

    async def _check_schema(self, sampling: Sampling, caller: str) -> None:
        if sampling.json_schema is not None:
            await self._parts().schemas.require(sampling.json_schema, caller)

    def _parts(self) -> _Running:
        if self._running is None:
            raise EngineNotReady("the engine is not started")
        return self._running

    async def _warmed_up(self, llm: "AsyncLLM", router: "ReportRouter | None", steps: LastSteps | None) -> _Running:
        requests = VllmRequests(llm, steps)
        adapters = VllmAdapters(llm, requests, self._adapters, self._find_adapter)
        try:
            await adapters.start()
            # The first prefill creates kernels lazily. Done here, it does not delay a query's first token.
            await _probe_prefill(requests, cached_tokens=0, new_tokens=_WARM_UP_TOKENS)
            kv = await router.memory() if router is not None else None
            composing, refusal = await _composing(llm) if router is not None else (None, "")
            if steps is not None:
                steps.opened()
        except BaseException:
            await requests.close()
            raise
        step = step_budget(llm.vllm_config.scheduler_config)
        self._info = msgspec.structs.replace(self._info, kv=kv, step=step, composing=composing, not_composing=refusal)
        plans = PlanStreams(requests, router, kv.boot if kv is not None else None)
        schemas = SchemaChecks(
            partial(engine_vocabulary, llm), self._settings.schema_cpu_s, trial_stack_bytes(), remembered_bytes()
        )
        schemas.start()
        return _Running(requests, adapters, router, steps, plans, VllmOrders(requests, router), schemas)

    def _load(self, arguments: dict[str, Any], router: "ReportRouter | None", steps: LastSteps | None) -> "AsyncLLM":
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.v1.engine.async_llm import AsyncLLM

        from generator.connector.scheduler.node_end_scheduler import end_steps_with_nodes
        from generator.connector.supported import check_config

        with TemporaryDirectory(prefix="ragtree-start-") as folder:
            refusal_file = Path(folder) / "refusal"
            try:
                given = AsyncEngineArgs(**arguments)
                config = given.create_engine_config()
                if given.async_scheduling:
                    # vLLM turns it off on a CPU, where it gains nothing. An explicit setting wins.
                    config.scheduler_config.async_scheduling = True
                if router is not None:
                    end_steps_with_nodes(config)
                    check_config(config)
                    name_refusal_file(config, refusal_file)
                if steps is not None:
                    steps.name_in(config)
                # On the event loop and not in a thread, because vLLM binds its sockets to the loop that creates it.
                return AsyncLLM.from_vllm_config(
                    config,
                    stat_loggers=[router.logger] if router is not None else [],
                    enable_log_requests=given.enable_log_requests,
                    disable_log_stats=given.disable_log_stats,
                )
            # vLLM raises AttributeError for a connector that is not in the named module.
            except (ValueError, TypeError, RuntimeError, AttributeError) as error:
                if (refusal := read_refusal(refusal_file)) is not None:
                    raise refusal from error
                raise ConfigError(f"vLLM cannot run {self._settings.model!r}: {_said(error)}", "generator") from error


def _said(error: Exception) -> str:
    """What an error of vLLM says. pydantic's own text also lists all arguments."""
    if isinstance(error, ValidationError):
        return "; ".join(fault["msg"].removeprefix("Value error, ") for fault in error.errors())
    return str(error)


async def _composing(llm: "AsyncLLM") -> tuple[ComposingInfo | None, str]:
    """How the engine composes KV, or why it does not. All ranks must be able to."""
    if llm.vllm_config.parallel_config.worker_extension_cls != WORKER_EXTENSION:
        return None, "vLLM runs with another worker_extension_cls"
    if llm.vllm_config.lora_config is not None:
        # The layers of the model then add what the adapters of vLLM's last step do.
        return None, "the engine serves adapters"
    # vLLM passes structs on as dictionaries.
    given = await llm.collective_rpc("give_model_to_ragtree")
    answers = msgspec.convert(given, list[tuple[ComposingInfo | None, str]])
    able = [info for info, _ in answers if info is not None]
    if len(able) < len(answers):
        return None, next(refusal for info, refusal in answers if info is None)
    return max(able, key=lambda info: info.move_s), ""


async def _probe_prefill(requests: VllmRequests, cached_tokens: int, new_tokens: int) -> PrefillCost:
    # Every vocabulary has these token ids. The salt is new, so neither requests nor earlier probes share the cache.
    prompt = [100 + position % 900 for position in range(cached_tokens + new_tokens)]
    salt = f"probe-{uuid4().hex}"
    if cached_tokens:
        await requests.first_token_s(prompt[:cached_tokens], salt)
    return PrefillCost(cached_tokens, new_tokens, await requests.first_token_s(prompt, salt))


def _exposition() -> str:
    """All of vLLM's metrics in Prometheus' text format.

    vLLM's Prometheus logger is on unless ``disable_log_stats`` is set; with the connector's reports it is on even then.
    """
    from vllm.v1.metrics.prometheus import get_prometheus_registry

    return generate_latest(_OfVllm(get_prometheus_registry())).decode()


class _OfVllm(Collector):
    """The metrics of vLLM in a registry that Ray and Python share."""

    def __init__(self, registry: Collector) -> None:
        self._registry = registry

    def collect(self) -> Iterator[Metric]:
        return (metric for metric in self._registry.collect() if metric.name.startswith(_METRIC_PREFIX))
