"""Requests to a running vLLM: sent, aborted, and with vLLM's errors, its death included, as the protocol's."""

import asyncio
import contextlib
import signal
import time
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from dataclasses import fields
from multiprocessing.connection import wait
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import psutil
import structlog

from generator.adapters import Adapter
from generator.connector.engine_process import LastSteps
from generator.engines.vllm_sampling import check_sampling, place_seed, refusal, sampling_params
from protocol.errors import EngineDied, EngineFailed, EngineNotReady, InvalidRequest, UnknownModel
from protocol.generation import Sampling

if TYPE_CHECKING:
    from vllm import SamplingParams
    from vllm.lora.request import LoRARequest
    from vllm.outputs import RequestOutput
    from vllm.v1.engine.async_llm import AsyncLLM

log = structlog.get_logger(__name__)

_EXIT_S = 5.0
"""How long a process that has failed may take to end."""

_FROM_OUTSIDE = (0, -signal.SIGKILL, -signal.SIGTERM, -signal.SIGINT)
"""Exit codes of a process that somebody has ended. All others are its own failure."""
_ANSWER_CHECK_S = 1.0
_ABORT_AGAIN_S = 0.02
_REMEMBERED = 256
_PROBE = list(range(100, 132))
"""Every vocabulary has these token ids."""
_COMPARED = 5


class EngineDeath:
    """Tells the requests of a dead engine apart, by its last ``steps``, or None if there is no record of them."""

    def __init__(self, llm: "AsyncLLM", steps: LastSteps | None) -> None:
        self._steps = steps
        self._processes = _processes(llm)

    async def error(self, name: str) -> EngineDied | EngineFailed:
        """What is raised for a request.

        EngineFailed if the engine failed by itself while it computed the request, which then may be the cause.
        EngineDied if it only waited, or if somebody has ended the engine.
        """
        if self._steps is None:
            return EngineDied("the engine's process is gone")
        if name not in self._steps.names():
            return EngineDied("the engine's process is gone", begun=False)
        if await self._ended_from_outside():
            return EngineDied("the engine's process was ended")
        log.error("engine_failed", query_id=name)
        return EngineFailed("The engine failed while it computed this request, which is not tried again.")

    async def _ended_from_outside(self) -> bool:
        # A process that takes longer is still at cleaning up, which nobody does who was killed.
        await asyncio.to_thread(wait, [process.sentinel for process in self._processes], _EXIT_S)
        return any(process.exitcode in _FROM_OUTSIDE for process in self._processes)


def _processes(llm: "AsyncLLM") -> list[Any]:
    """The engine's processes. vLLM has no public name for them; without any, a death is the engine's own."""
    manager = getattr(getattr(getattr(llm, "engine_core", None), "resources", None), "engine_manager", None)
    return list(getattr(manager, "processes", ()))


class VllmRequests:
    """The requests of one ``AsyncLLM``, by id. ``steps`` says which of them its engine computes."""

    def __init__(self, llm: "AsyncLLM", steps: LastSteps | None = None) -> None:
        self._llm = llm
        self._death = EngineDeath(llm, steps)
        self._closed = False
        self._adapters: dict[str, LoRARequest] = {}
        self._running: set[str] = set()
        # The tasks that abort running requests on demand.
        self._ending: dict[str, asyncio.Task[None]] = {}
        # Requests that were ended while they were not running.
        self._ended_early: deque[str] = deque(maxlen=_REMEMBERED)

    def check(self) -> None:
        """Raise EngineNotReady once closed, EngineDied once the engine's process is gone."""
        if self._closed:
            raise EngineNotReady("the engine is closed")
        if self._llm.errored:
            raise EngineDied("the engine's process is gone")

    async def load(self, adapters: Sequence[Adapter]) -> None:
        """Load adapters, which then serve requests by their digests.

        Raises ConfigError for one that vLLM refuses or that has no effect, and EngineDied or EngineNotReady if the
        engine is lost meanwhile.
        """
        if not adapters:
            return
        from vllm.lora.peft_helper import PEFTHelper
        from vllm.lora.request import LoRARequest
        from vllm.v1.engine.exceptions import EngineDeadError

        known = {field.name for field in fields(PEFTHelper)}
        without = await self._probabilities("")
        # Two names may stand for the same weights.
        for number, adapter in enumerate({adapter.digest: adapter for adapter in adapters}.values(), 1):
            if unknown := adapter.features - known:
                # Older releases of vLLM pass over what they do not know.
                raise adapter.refused(f"this release of vLLM knows no {', '.join(sorted(unknown))}")
            request = LoRARequest(adapter.digest, number, str(adapter.folder))
            loading = asyncio.create_task(self._llm.add_lora(request))
            try:
                await self.wait_alive(loading)
                loaded = loading.result()
            except (EngineDied, EngineNotReady):
                raise
            except EngineDeadError as error:
                raise EngineDied("the engine's process is gone") from error
            except Exception as error:
                self.check()
                # vLLM's own process raised it, so that only its text is left.
                raise adapter.refused(f"vLLM refuses it ({error})") from error
            finally:
                loading.cancel()
            if not loaded:
                raise adapter.refused("vLLM does not load it")
            if not await asyncio.to_thread(adapter.is_unchanged):
                raise adapter.refused("its files changed while it was loaded")
            self._adapters[adapter.digest] = request
            if await self._probabilities(adapter.digest) == without:
                # vLLM passes over layers that it does not know by these names.
                raise adapter.refused("it changes nothing: its layers are not those of the model, or it is not trained")

    async def check_sampling(self, sampling: Sampling) -> None:
        """Raise InvalidRequest if vLLM refuses a request with this sampling."""
        # In a thread, because this loop delivers tokens.
        await asyncio.to_thread(check_sampling, self._llm.vllm_config, self._llm.tokenizer, sampling)

    async def close(self) -> None:
        """Abort all requests, whose streams end with EngineDied, and shut vLLM down."""
        self._closed = True
        # vLLM's own shutdown would leave their streams waiting forever.
        await self._llm.abort(list(self._running))
        try:
            self._llm.shutdown()
        except psutil.NoSuchProcess:
            # vLLM was about to kill a process of the engine, which ended before it, and has left the others.
            for process in _processes(self._llm):
                process.kill()
            self._llm.engine_core.resources()

    def has_ended_early(self, request_id: str) -> bool:
        """Whether ``end`` was called for this request before it began. The last 256 calls are remembered."""
        return request_id in self._ended_early

    def end(self, request_id: str) -> None:
        """Abort a request in the background. vLLM aborts between two steps; the last output has ``abort``."""
        if request_id in self._running:
            self._ending.setdefault(request_id, asyncio.create_task(self._abort(request_id)))
        else:
            # The request has ended, or this call has overtaken the one that begins it.
            self._ended_early.append(request_id)

    async def generate(
        self, request_id: str, token_ids: list[int], salt: str, params: "SamplingParams", adapter: str = ""
    ) -> "AsyncGenerator[RequestOutput, None]":
        """Stream a request's outputs. ``salt`` separates its KV in vLLM's prefix cache from that of other salts.

        ``adapter`` is the digest of the adapter to use, if any. Closing the iterator aborts the request. Raises
        EngineNotReady, EngineDied or EngineFailed, UnknownModel for an adapter that is not loaded, and InvalidRequest
        if vLLM refuses the request or cannot compile its schema.
        """
        from vllm.exceptions import VLLMValidationError
        from vllm.inputs import TokensPrompt
        from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError

        if self._closed:
            raise EngineNotReady("the engine is closed")
        if adapter and adapter not in self._adapters:
            raise UnknownModel("The adapter of this request is not loaded any more.", "model")
        place_seed(self._llm.vllm_config, params)
        prompt = TokensPrompt(prompt_token_ids=token_ids, cache_salt=salt)
        self._running.add(request_id)
        try:
            async with contextlib.aclosing(
                self._llm.generate(prompt, params, request_id, lora_request=self._adapters.get(adapter))
            ) as outputs:
                async for output in outputs:
                    reason = output.outputs[0].finish_reason
                    if reason == "error" and params.structured_outputs is not None:
                        raise InvalidRequest("vLLM cannot make answers that follow this schema", "json_schema")
                    if reason == "error" or (reason == "abort" and request_id not in self._ending):
                        raise EngineDied("the engine aborted the request")
                    yield output
        except EngineDeadError as error:
            raise await self._death.error(request_id) from error
        except VLLMValidationError as error:
            raise refusal(error) from error
        except EngineGenerateError as error:
            raise EngineDied("the engine failed during the request") from error
        finally:
            self._running.discard(request_id)
            if request_id in self._ending:
                self._ending.pop(request_id).cancel()

    async def first_token_s(self, prompt: list[int], salt: str) -> float:
        """Seconds until one token of an answer to the prompt."""
        began = time.perf_counter()
        params = sampling_params(Sampling(max_tokens=1))
        async for _ in self.generate(f"probe-{uuid4().hex}", prompt, salt, params):
            pass
        return time.perf_counter() - began

    async def empty_prefix_cache(self) -> bool:
        """Empty vLLM's own prefix cache; what runs is computed again. Returns whether vLLM did so.

        Raises EngineNotReady or EngineDied if the engine is lost meanwhile, and any error of vLLM's call.
        """
        reset = asyncio.create_task(self._llm.reset_prefix_cache(reset_running_requests=True))
        try:
            await self.wait_alive(reset)
            return bool(reset.result())
        finally:
            reset.cancel()

    async def wait_alive(self, answer: "asyncio.Future[Any]") -> None:
        """Wait for an answer of the engine's process, which may die without failing the answer.

        Raises EngineNotReady or EngineDied.
        """
        while not answer.done():
            self.check()
            await asyncio.wait({answer}, timeout=_ANSWER_CHECK_S)

    async def _probabilities(self, adapter: str) -> list[float]:
        """Natural logarithms of the most likely probabilities of the first token after a fixed prompt."""
        params = sampling_params(Sampling(max_tokens=1, logprobs=True, alternatives=_COMPARED))
        found: list[float] = []
        async for output in self.generate(f"probe-{uuid4().hex}", _PROBE, uuid4().hex, params, adapter):
            found += [token.logprob for position in output.outputs[0].logprobs or () for token in position.values()]
        return found

    async def _abort(self, request_id: str) -> None:
        """Abort a request until it has ended. vLLM ignores the abort of a request that it has not received yet."""
        while request_id in self._running:
            await self._llm.abort(request_id)
            await asyncio.sleep(_ABORT_AGAIN_S)
