"""vLLM behind the engine interface: the same code on CUDA and on a CPU."""

import asyncio
import contextlib
import os
import time
from collections import deque
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import uuid4

import msgspec
import structlog

from generator.connector.messages import RequestOrders, Resolved
from generator.settings import GeneratorSettings
from protocol.errors import ConfigError, EngineDied, EngineNotReady, InvalidRequest, RagtreeError, Unavailable
from protocol.generation import (
    EngineInfo,
    FinishReason,
    GenerationStep,
    PrefillCost,
    PrefillResult,
    Sampling,
    StepBudget,
    TokenLogprob,
)
from protocol.kv import LostCopy, Orders, ResidencyReport
from protocol.plans import PrefillPlan
from protocol.tiers import Tier

if TYPE_CHECKING:
    from vllm import SamplingParams
    from vllm.config import SchedulerConfig
    from vllm.outputs import CompletionOutput, RequestOutput
    from vllm.v1.engine.async_llm import AsyncLLM

    from generator.connector.report_router import EngineReports

log = structlog.get_logger(__name__)

T = TypeVar("T")

_CONNECTOR = "generator.connector.connector"
_ANSWER_CHECK_S = 1.0
_ABORT_AGAIN_S = 0.02
_LONGEST_STEP_S = 30.0
_REMEMBERED = 256


class VllmEngine:
    """One vLLM ``AsyncLLM`` and the model it holds; its own prefix cache is on, salted with the plan's namespace.

    ``instance`` is its name in plans. Where KV is kept, RAGTree's connector executes the plans inside of vLLM.
    """

    def __init__(self, settings: GeneratorSettings, folder: Path, instance: str = "generator") -> None:
        self._settings = settings
        self._folder = folder
        self._instance = instance
        self._info = EngineInfo(model=settings.model, engine="vllm", max_model_len=settings.max_model_len)
        self._llm: AsyncLLM | None = None
        self._reports: EngineReports | None = None
        self._running: set[str] = set()
        self._ending: dict[str, asyncio.Task[None]] = {}
        # Speculative plans that were ended while they were not running.
        self._not_begun: deque[str] = deque(maxlen=_REMEMBERED)

    async def start(self) -> None:
        """Load the model. Raises ConfigError when vLLM refuses the model or its arguments."""
        _prepare_environment(self._settings)
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.v1.engine.async_llm import AsyncLLM

        arguments = self._arguments()
        loggers = []
        if self._keeps_kv(arguments):
            from generator.connector.report_router import EngineReports

            self._reports = EngineReports()
            loggers.append(self._reports.logger)
        try:
            # On the event loop, not in a thread: vLLM ties its sockets to the loop it is made in.
            self._llm = AsyncLLM.from_engine_args(AsyncEngineArgs(**arguments), stat_loggers=loggers)
        except (ValueError, TypeError, RuntimeError) as error:
            raise ConfigError(f"vLLM cannot run {self._settings.model!r}: {error}", param="generator") from error
        # The first prefill pays for lazily made kernels; better now than in somebody's time to first token.
        await self.probe_prefill(cached_tokens=0, new_tokens=64)
        kv = await self._reports.memory() if self._reports is not None else None
        self._info = msgspec.structs.replace(
            self._info, kv=kv, step=_step_budget(self._llm.vllm_config.scheduler_config)
        )

    async def close(self) -> None:
        """Abort what runs, which ends its streams with EngineDied, and end the engine's process."""
        llm, self._llm = self._llm, None
        if llm is not None:
            # vLLM's own shutdown would leave them waiting for ever.
            await llm.abort(list(self._running))
            llm.shutdown()
            if self._reports is not None:
                self._reports.fail()

    async def ready(self) -> None:
        """Raise EngineNotReady before ``start``, EngineDied once the engine's process is gone."""
        if self._engine().errored:
            raise EngineDied("the engine's process is gone")

    async def info(self) -> EngineInfo:
        """What is served."""
        return self._info

    async def metrics(self) -> dict[str, str]:
        """VLLM's own metrics."""
        self._engine()
        from generator.engines.vllm_metrics import exposition

        # Hundreds of lines, and this loop hands out tokens.
        return {self._instance: await asyncio.to_thread(exposition)}

    async def stream(self, plan: PrefillPlan, sampling: Sampling) -> AsyncGenerator[GenerationStep, None]:
        """Prefill the plan's prompt and stream the answer; closing the iterator aborts the request in vLLM."""
        parameters = _sampling_params(sampling)
        for plan_id in plan.ends:
            await self.end(plan_id)
        if plan.query_id in self._not_begun:
            yield GenerationStep("", 0, finish_reason="ended")
            return
        with contextlib.ExitStack() as waiting:
            resolving: asyncio.Future[Resolved] | None = None
            if self._reports is not None:
                parameters.extra_args = {"kv_transfer_params": self._orders(plan).as_parameters()}
                resolving = waiting.enter_context(self._reports.resolving(plan.query_id))
            # Under a salt of its own nobody finds what it computes, whatever keeps it.
            salt = uuid4().hex if plan.unshared else plan.namespace
            outputs = self._generate(plan.query_id, plan.prompt.token_ids, salt, parameters)
            async with contextlib.aclosing(outputs):
                first = True
                async for output in outputs:
                    completion = output.outputs[0]
                    if completion.finish_reason == "abort":
                        prefill = await self._ended_prefill(resolving) if first else None
                        yield GenerationStep(text="", tokens=0, prefill=prefill, finish_reason="ended")
                        return
                    if not completion.token_ids and not output.finished:
                        continue
                    yield GenerationStep(
                        text=completion.text,
                        tokens=len(completion.token_ids),
                        prefill=await self._prefill_result(output, plan, resolving) if first else None,
                        finish_reason=_finish_reason(completion.finish_reason) if output.finished else None,
                        logprobs=_logprobs(completion) if sampling.logprobs else (),
                    )
                    first = False

    async def end(self, plan_id: str) -> None:
        """Abort a speculative plan's request in vLLM, which does so between two steps."""
        engine = self._engine()
        if plan_id in self._running:
            self._ending.setdefault(plan_id, asyncio.create_task(self._abort(engine, plan_id)))
        else:
            # It has ended, or the call has overtaken the one that begins it.
            self._not_begun.append(plan_id)

    async def _abort(self, engine: "AsyncLLM", request_id: str) -> None:
        """Abort a request until it has ended: vLLM does nothing where it is yet to hear of it."""
        while request_id in self._running:
            await engine.abort(request_id)
            await asyncio.sleep(_ABORT_AGAIN_S)

    def _orders(self, plan: PrefillPlan) -> RequestOrders:
        """A plan as the connector takes it; one for a former life of the engine names what is not there any more."""
        orders = RequestOrders.of_plan(plan)
        if plan.boot and self._info.kv is not None and plan.boot != self._info.kv.boot:
            return msgspec.structs.replace(orders, nodes=(), moves=(), spare=())
        return orders

    async def carry_out(self, orders: Orders) -> tuple[LostCopy, ...]:
        """Carry out orders that come with no plan, to their end.

        Without the connector vLLM's own cache is all that is ours to clear. It does not know which of its blocks a
        document's KV lies in, so it forgets everything, and what runs is computed anew. Raises Unavailable where it
        does not.
        """
        if self._reports is None:
            engine = self._engine()
            if orders.forget or orders.everything:
                await self._reset(engine)
            return ()
        name = f"orders-{uuid4().hex}"
        return await self._ask(RequestOrders.outside_plans(name, orders), self._reports.carried_out(name))

    async def residency(self) -> tuple[ResidencyReport, ...]:
        """What the tiers hold by their own account."""
        if self._reports is None:
            self._engine()
            return ()
        name = f"inquiry-{uuid4().hex}"
        return await self._ask(RequestOrders.outside_plans(name, Orders(), inquire=True), self._reports.held(name))

    async def _reset(self, engine: "AsyncLLM") -> None:
        """Empty vLLM's own cache."""
        reset = asyncio.create_task(engine.reset_prefix_cache(reset_running_requests=True))
        try:
            await self._alive_until(reset)
            if not reset.result():
                raise Unavailable("vLLM did not empty its prefix cache")
        except RagtreeError:
            raise
        except Exception as error:
            # vLLM says no more than that the call has failed.
            raise Unavailable(f"vLLM could not empty its prefix cache: {error}") from error
        finally:
            reset.cancel()

    async def _alive_until(self, answer: "asyncio.Future[Any]") -> None:
        """Wait for an answer of the engine's process, which may go away without a word to those who wait."""
        while not answer.done():
            await self.ready()
            await asyncio.wait({answer}, timeout=_ANSWER_CHECK_S)

    async def _ask(self, orders: RequestOrders, answer: "asyncio.Future[T]") -> T:
        """Send orders with the shortest of requests, the only way into vLLM's scheduler; what becomes of them."""
        parameters = _sampling_params(Sampling(max_tokens=1))
        parameters.extra_args = {"kv_transfer_params": orders.as_parameters()}
        try:
            async for _ in self._generate(orders.name, [0], orders.name, parameters):
                pass
            await self._alive_until(answer)
            return answer.result()
        finally:
            answer.cancel()

    async def probe_prefill(self, cached_tokens: int, new_tokens: int) -> PrefillCost:
        """Time one token's generation behind a prompt of which vLLM caches the first ``cached_tokens``.

        vLLM caches whole blocks, so up to a block less is really cached.
        """
        # Ids that every vocabulary has; the salt keeps them apart from everybody's cache, and from the last probe's.
        prompt = [100 + position % 900 for position in range(cached_tokens + new_tokens)]
        salt = f"probe-{uuid4().hex}"
        if cached_tokens:
            await self._first_token(prompt[:cached_tokens], salt)
        seconds = await self._first_token(prompt, salt)
        return PrefillCost(cached_tokens, new_tokens, seconds)

    async def _first_token(self, prompt: list[int], salt: str) -> float:
        began = time.perf_counter()
        params = _sampling_params(Sampling(max_tokens=1))
        async for _ in self._generate(f"probe-{uuid4().hex}", prompt, salt, params):
            pass
        return time.perf_counter() - began

    async def _generate(
        self, request_id: str, token_ids: list[int], salt: str, params: "SamplingParams"
    ) -> "AsyncGenerator[RequestOutput, None]":
        from vllm.exceptions import VLLMValidationError
        from vllm.inputs import TokensPrompt
        from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError

        prompt = TokensPrompt(prompt_token_ids=token_ids, cache_salt=salt)
        engine = self._engine()
        self._running.add(request_id)
        try:
            async with contextlib.aclosing(engine.generate(prompt, params, request_id)) as outputs:
                async for output in outputs:
                    ended = output.outputs[0].finish_reason
                    if ended == "error" or (ended == "abort" and request_id not in self._ending):
                        raise EngineDied("the engine gave the request up")
                    yield output
        except EngineDeadError as error:
            raise EngineDied("the engine's process is gone") from error
        except VLLMValidationError as error:
            raise InvalidRequest(f"vLLM refuses the request: {error}") from error
        except EngineGenerateError as error:
            raise EngineDied("the engine failed under this request") from error
        finally:
            self._running.discard(request_id)
            if request_id in self._ending:
                self._ending.pop(request_id).cancel()

    async def _ended_prefill(self, resolving: "asyncio.Future[Resolved] | None") -> PrefillResult | None:
        """What is kept of a prefill that was ended; None for nothing."""
        if self._reports is None or resolving is None:
            return None
        # VLLM ends its stream at once, and the engine the request when its step is over.
        await asyncio.wait({resolving}, timeout=_LONGEST_STEP_S)
        if not resolving.done() or not resolving.result().reached:
            return None
        resolved = resolving.result()
        return PrefillResult(
            prompt_tokens=resolved.reached or 0,
            cached_tokens=sum(resolved.loaded.values()),
            prefill_ms=0.0,
            kv_load_ms=resolved.load_ms,
            loaded=resolved.loaded,
            lost=self._reports.take_lost(),
        )

    async def _prefill_result(
        self, output: "RequestOutput", plan: PrefillPlan, resolving: "asyncio.Future[Resolved] | None"
    ) -> PrefillResult:
        metrics = output.metrics
        scheduled = metrics.first_token_ts - metrics.scheduled_ts if metrics is not None else 0.0
        cached = output.num_cached_tokens or 0
        result = PrefillResult(
            prompt_tokens=plan.prompt.token_count,
            cached_tokens=cached,
            prefill_ms=scheduled * 1000,
            loaded={Tier.GPU: cached} if cached else {},
        )
        if self._reports is None or resolving is None:
            return result
        # It comes with the same message as the token, and is handed out right behind it.
        await asyncio.wait({resolving}, timeout=_ANSWER_CHECK_S)
        if not resolving.done():
            log.warning("prefill_not_reported", query_id=plan.query_id)
            return result
        resolved = resolving.result()
        return msgspec.structs.replace(
            result,
            cached_tokens=sum(resolved.loaded.values()),
            kv_load_ms=resolved.load_ms,
            loaded=resolved.loaded,
            lost=self._reports.take_lost(),
        )

    def _engine(self) -> "AsyncLLM":
        if self._llm is None:
            raise EngineNotReady("the engine is not started")
        return self._llm

    def _arguments(self) -> dict[str, Any]:
        return {
            "model": str(self._folder),
            "served_model_name": self._settings.model,
            "dtype": _dtype(self._settings.dtype),
            "max_model_len": self._settings.max_model_len,
            "max_num_seqs": self._settings.max_num_seqs,
            "gpu_memory_utilization": self._settings.gpu_memory_utilization,
            "enable_prefix_caching": True,
            "distributed_executor_backend": "uni",
            "enable_log_requests": False,
            **_device_arguments(self._settings.engine_args.get("max_model_len", self._settings.max_model_len)),
            **(self._connector_arguments() if self._settings.kv.enabled else {}),
            **self._settings.engine_args,
        }

    def _connector_arguments(self) -> dict[str, Any]:
        kv = self._settings.kv.model_dump(mode="json", exclude={"enabled"})
        return {
            "async_scheduling": False,
            "kv_transfer_config": {
                "kv_connector": "RagtreeConnector",
                "kv_connector_module_path": _CONNECTOR,
                "kv_role": "kv_both",
                "kv_load_failure_policy": "recompute",
                "kv_connector_extra_config": {"instance": self._instance, **kv},
            },
        }

    def _keeps_kv(self, arguments: dict[str, Any]) -> bool:
        """Whether it is RAGTree's connector that the engine runs with, not another of the user's."""
        return (arguments.get("kv_transfer_config") or {}).get("kv_connector_module_path") == _CONNECTOR


def _prepare_environment(settings: GeneratorSettings) -> None:
    """Set what vLLM reads from the environment when it is first imported; what the user set wins."""
    threads = str(settings.cpu_threads)
    for name, value in {
        # Without a GPU these halve the start and save 770 MiB and a spinning core.
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": threads,
        "VLLM_CPU_KVCACHE_SPACE": str(settings.cpu_kv_cache_gib),
        # vLLM's logging set-up would take the host process's own handlers away.
        "VLLM_CONFIGURE_LOGGING": "0",
        "VLLM_NO_USAGE_STATS": "1",
    }.items():
        os.environ.setdefault(name, value)


def _dtype(configured: str) -> str:
    if configured != "auto":
        return configured
    import torch

    native = torch.cuda.is_available() or torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    # Emulated bfloat16 prefills at a fifth of float32's speed.
    return "bfloat16" if native else "float32"


def _device_arguments(max_model_len: int) -> dict[str, Any]:
    import torch

    if torch.cuda.is_available():
        return {}
    # Tracing the model for compilation takes a minute and a half of every start and gains nothing measurable on two
    # cores.
    # Blocks of 32 tokens, the smallest that the attention kernels take: less of each document is cut off at its ends.
    # Short steps, of which a prompt leaves others a quarter: what comes in the middle of a long prefill, and has little
    # to compute itself, waits for a step and not for its end; and a speculation that turns out wrong is rid of within
    # one. Against steps of 640 tokens that costs 0 to 5 % of the prefill's speed.
    return {
        "enforce_eager": True,
        "max_num_batched_tokens": 256,
        "long_prefill_token_threshold": min(192, max_model_len),
        "block_size": 32,
    }


def _step_budget(scheduler: "SchedulerConfig") -> StepBudget:
    tokens = scheduler.max_num_batched_tokens
    return StepBudget(tokens, scheduler.long_prefill_token_threshold or tokens)


def _sampling_params(sampling: Sampling) -> "SamplingParams":
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    return SamplingParams(
        max_tokens=sampling.max_tokens,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        seed=sampling.seed,
        stop=list(sampling.stop) or None,
        logprobs=0 if sampling.logprobs else None,
        output_kind=RequestOutputKind.DELTA,
    )


def _logprobs(completion: "CompletionOutput") -> tuple[TokenLogprob, ...]:
    """Asked for none beside the chosen ones, vLLM gives those of the chosen."""
    return tuple(
        TokenLogprob(token_id, ranked[token_id].logprob)
        for token_id, ranked in zip(completion.token_ids, completion.logprobs or [], strict=True)
    )


def _finish_reason(reason: str | None) -> FinishReason:
    return "length" if reason == "length" else "stop"
