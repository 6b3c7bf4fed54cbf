"""vLLM behind the engine interface: the same code on CUDA and on a CPU."""

import contextlib
import os
import time
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import structlog

from generator.settings import GeneratorSettings
from protocol.errors import ConfigError, EngineDied, EngineNotReady, InvalidRequest
from protocol.generation import EngineInfo, FinishReason, GenerationStep, PrefillCost, PrefillResult, Sampling
from protocol.plans import PrefillPlan

if TYPE_CHECKING:
    from vllm import SamplingParams
    from vllm.outputs import RequestOutput
    from vllm.v1.engine.async_llm import AsyncLLM

log = structlog.get_logger(__name__)


class VllmEngine:
    """One vLLM ``AsyncLLM`` and the model it holds; its own prefix cache is on, salted with the plan's namespace."""

    def __init__(self, settings: GeneratorSettings, folder: Path) -> None:
        self._settings = settings
        self._folder = folder
        self._info = EngineInfo(model=settings.model, engine="vllm", max_model_len=settings.max_model_len)
        self._llm: AsyncLLM | None = None
        self._running: set[str] = set()

    async def start(self) -> None:
        """Load the model. Raises ConfigError when vLLM refuses the model or its arguments."""
        _prepare_environment(self._settings)
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.v1.engine.async_llm import AsyncLLM

        try:
            arguments = AsyncEngineArgs(**self._arguments())
            # On the event loop, not in a thread: vLLM ties its sockets to the loop it is made in.
            self._llm = AsyncLLM.from_engine_args(arguments)
        except (ValueError, TypeError, RuntimeError) as error:
            raise ConfigError(f"vLLM cannot run {self._settings.model!r}: {error}", param="generator") from error
        # The first prefill pays for lazily made kernels; better now than in somebody's time to first token.
        await self.probe_prefill(cached_tokens=0, new_tokens=64)

    async def close(self) -> None:
        """Abort what runs, which ends its streams with EngineDied, and end the engine's process."""
        llm, self._llm = self._llm, None
        if llm is not None:
            # vLLM's own shutdown would leave them waiting for ever.
            await llm.abort(list(self._running))
            llm.shutdown()

    async def ready(self) -> None:
        """Raise EngineNotReady before ``start``, EngineDied once the engine's process is gone."""
        if self._engine().errored:
            raise EngineDied("the engine's process is gone")

    async def info(self) -> EngineInfo:
        """What is served."""
        return self._info

    async def stream(self, plan: PrefillPlan, sampling: Sampling) -> AsyncGenerator[GenerationStep, None]:
        """Prefill the plan's prompt and stream the answer; closing the iterator aborts the request in vLLM."""
        async with contextlib.aclosing(
            self._generate(plan.query_id, plan.prompt.token_ids, plan.namespace, _sampling_params(sampling))
        ) as outputs:
            first = True
            async for output in outputs:
                completion = output.outputs[0]
                if not completion.token_ids and not output.finished:
                    continue
                yield GenerationStep(
                    text=completion.text,
                    tokens=len(completion.token_ids),
                    prefill=_prefill_result(output, plan.prompt.token_count) if first else None,
                    finish_reason=_finish_reason(completion.finish_reason) if output.finished else None,
                )
                first = False

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
                    if output.outputs[0].finish_reason in ("abort", "error"):
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
            **_device_arguments(),
            **self._settings.engine_args,
        }


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


def _device_arguments() -> dict[str, Any]:
    import torch

    if torch.cuda.is_available():
        return {}
    # Tracing the model for compilation takes a minute and a half of every start and gains nothing measurable on two
    # cores; the start also runs one full batch, which a CPU feels.
    return {"enforce_eager": True, "max_num_batched_tokens": 2048}


def _sampling_params(sampling: Sampling) -> "SamplingParams":
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    return SamplingParams(
        max_tokens=sampling.max_tokens,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        seed=sampling.seed,
        stop=list(sampling.stop) or None,
        output_kind=RequestOutputKind.DELTA,
    )


def _prefill_result(output: "RequestOutput", prompt_tokens: int) -> PrefillResult:
    metrics = output.metrics
    scheduled = metrics.first_token_ts - metrics.scheduled_ts if metrics is not None else 0.0
    return PrefillResult(
        prompt_tokens=prompt_tokens,
        cached_tokens=output.num_cached_tokens or 0,
        prefill_ms=scheduled * 1000,
    )


def _finish_reason(reason: str | None) -> FinishReason:
    return "length" if reason == "length" else "stop"
