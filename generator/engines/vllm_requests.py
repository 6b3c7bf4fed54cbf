"""Requests to a running vLLM: sent, aborted, and with vLLM's errors, its death included, as the protocol's."""

import asyncio
import contextlib
import signal
import time
from collections import deque
from collections.abc import AsyncGenerator, Coroutine
from multiprocessing.connection import wait
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import uuid4

import psutil
import structlog

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

T = TypeVar("T")

_EXIT_S = 5.0
"""How long a process that has failed may take to end."""

_FROM_OUTSIDE = (0, -signal.SIGKILL, -signal.SIGTERM, -signal.SIGINT)
"""Exit codes of a process that somebody has ended. All others are its own failure."""
_ANSWER_CHECK_S = 1.0
_ABORT_AGAIN_S = 0.02
_REMEMBERED = 256


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
        # The adapters that running requests use.
        self._running: dict[str, str] = {}
        self._unused: dict[str, asyncio.Event] = {}
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

    def offer(self, digest: str, adapter: "LoRARequest") -> None:
        """Let requests use a loaded adapter by its digest."""
        self._adapters[digest] = adapter

    def withdraw(self, digest: str) -> None:
        """Refuse new requests for an adapter. Those that run go on."""
        self._adapters.pop(digest, None)

    async def unused(self, digest: str) -> None:
        """Return when no request runs that uses an adapter."""
        while digest in self._running.values():
            await self._unused.setdefault(digest, asyncio.Event()).wait()

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
        self._running[request_id] = adapter
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
            self._running.pop(request_id, None)
            if adapter in self._unused and adapter not in self._running.values():
                self._unused.pop(adapter).set()
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
        return bool(await self.answer(self._llm.reset_prefix_cache(reset_running_requests=True)))

    async def answer(self, call: Coroutine[Any, Any, T]) -> T:
        """The answer of the engine's process to a call. Raises as ``wait_alive``, and any error of the call."""
        from vllm.v1.engine.exceptions import EngineDeadError

        asked = asyncio.create_task(call)
        try:
            await self.wait_alive(asked)
            return asked.result()
        except EngineDeadError as error:
            raise EngineDied("the engine's process is gone") from error
        finally:
            asked.cancel()

    async def wait_alive(self, answer: "asyncio.Future[Any]") -> None:
        """Wait for an answer of the engine's process, which may die without failing the answer.

        Raises EngineNotReady or EngineDied.
        """
        while not answer.done():
            self.check()
            await asyncio.wait({answer}, timeout=_ANSWER_CHECK_S)

    async def _abort(self, request_id: str) -> None:
        """Abort a request until it has ended. vLLM ignores the abort of a request that it has not received yet."""
        while request_id in self._running:
            await self._llm.abort(request_id)
            await asyncio.sleep(_ABORT_AGAIN_S)
