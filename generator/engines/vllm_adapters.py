"""Adapters in a running vLLM: loaded, offered to requests, and unloaded once no request uses them."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import fields
from itertools import count
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar
from uuid import uuid4

import structlog

from generator.adapters import Adapter
from generator.engines.vllm_arguments import WORKER_EXTENSION, adapter_places
from generator.engines.vllm_requests import VllmRequests
from generator.engines.vllm_sampling import sampling_params
from protocol.errors import (
    ConfigError,
    Conflict,
    EngineDied,
    EngineNotReady,
    InvalidRequest,
    RagtreeError,
    UnknownModel,
)
from protocol.generation import Sampling, ServedAdapter

if TYPE_CHECKING:
    from vllm.lora.request import LoRARequest
    from vllm.v1.engine.async_llm import AsyncLLM

log = structlog.get_logger(__name__)

T = TypeVar("T")

FindAdapter: TypeAlias = Callable[[str, str], Adapter]
"""Brings an adapter here, by its name and its folder or Hugging Face id. Raises ConfigError."""

_PROBE = list(range(100, 132))
"""Every vocabulary has these token ids."""
_COMPARED = 5


class VllmAdapters:
    """The adapters of one ``AsyncLLM``, each in a place of its own.

    ``configured`` ones stay. Others come and go while the engine runs.
    """

    def __init__(
        self, llm: "AsyncLLM", requests: VllmRequests, configured: Sequence[Adapter], find: FindAdapter
    ) -> None:
        self._llm = llm
        self._requests = requests
        self._configured = configured
        self._find = find
        self.served: dict[str, ServedAdapter] = {}
        # What takes a place, by digest: two names may stand for the same weights.
        self._loaded: dict[str, LoRARequest] = {}
        # Those among them that no name stands for any more, and that requests still use.
        self._leaving: dict[str, asyncio.Task[None]] = {}
        # Places of which nobody knows whether vLLM has freed them.
        self._lost = 0
        # vLLM tells adapters apart by their numbers, and may remember those of former ones.
        self._numbers = count(1)
        self._changing = asyncio.Lock()
        self._changes: set[asyncio.Task[Any]] = set()

    async def start(self) -> None:
        """Load the configured adapters.

        Raises ConfigError for one that vLLM refuses or that has no effect, and EngineDied or EngineNotReady if the
        engine is lost meanwhile.
        """
        for adapter in self._configured:
            await self._offer(adapter, None)

    def close(self) -> None:
        """End what is under way."""
        for task in (*self._changes, *self._leaving.values()):
            task.cancel()

    async def load(self, name: str, source: str) -> str:
        """Load an adapter, and return its digest. A caller that goes away does not interrupt it.

        Raises InvalidRequest for one that cannot be served, Conflict if the name stands for other files or no place is
        free, and EngineDied or EngineNotReady.
        """
        return await self._to_the_end(self._load(name, source))

    async def unload(self, name: str) -> None:
        """Refuse new requests for an adapter, and free its place once those that use it have ended.

        Raises UnknownModel, and Conflict for a configured one.
        """
        async with self._changing:
            adapter = self.served.get(name)
            if adapter is None:
                raise UnknownModel(f"No adapter {name!r} is loaded.", "name")
            if adapter.source is None:
                raise Conflict(f"The adapter {name!r} is one of generator.adapters: remove it there.", "name")
            del self.served[name]
            digest = adapter.digest
            if all(other.digest != digest for other in self.served.values()):
                self._requests.withdraw(digest)
                self._leaving[digest] = asyncio.create_task(self._leave(digest))
        log.info("adapter_unloaded", adapter=name)

    async def _load(self, name: str, source: str) -> str:
        try:
            adapter = await asyncio.to_thread(self._find, name, source)
            async with self._changing:
                known = self.served.get(name)
                if known is not None and known.source is None:
                    raise Conflict(f"The name {name!r} is one of generator.adapters.", "name")
                if known is not None and known.digest != adapter.digest:
                    raise Conflict(f"The adapter {name!r} is served with other files: unload it first.", "name")
                await self._offer(adapter, source)
        except ConfigError as error:
            raise InvalidRequest(error.message, "source") from error
        except RagtreeError:
            raise
        except Exception as error:
            log.exception("adapter_not_loaded", adapter=name, source=source)
            raise InvalidRequest(f"The adapter {name!r} cannot be loaded: {error}", "source") from error
        log.info("adapter_loaded", adapter=name, source=source, digest=adapter.digest)
        return adapter.digest

    async def _offer(self, adapter: Adapter, source: str | None) -> None:
        """Load an adapter unless it is, and let requests use it."""
        digest = adapter.digest
        if (leaving := self._leaving.pop(digest, None)) is not None:
            leaving.cancel()
        if digest not in self._loaded:
            self._loaded[digest] = await self._placed(adapter)
        self._requests.offer(digest, self._loaded[digest])
        self.served[adapter.name] = ServedAdapter(digest, source)

    async def _placed(self, adapter: Adapter) -> "LoRARequest":
        """Have vLLM load an adapter, and check that it applies all of it."""
        from vllm.lora.peft_helper import PEFTHelper
        from vllm.lora.request import LoRARequest

        lora = self._llm.vllm_config.lora_config
        if lora is None:
            raise Conflict("The engine has no place for adapters; start it with generator.engine_args.max_loras.")
        places = adapter_places(lora)
        if len(self._loaded) + self._lost >= places:
            raise Conflict(
                f"All {places} places for adapters are taken; unload one and wait until its requests have ended, or "
                "start with more generator.engine_args.max_loras."
            )
        if adapter.rank > lora.max_lora_rank:
            raise adapter.refused(
                f"its rank is {adapter.rank}, and the engine has room for {lora.max_lora_rank} "
                "(generator.engine_args.max_lora_rank)"
            )
        if unknown := adapter.features - {field.name for field in fields(PEFTHelper)}:
            # Older releases of vLLM pass over what they do not know.
            raise adapter.refused(f"this release of vLLM knows no {', '.join(sorted(unknown))}")
        request = LoRARequest(adapter.digest, next(self._numbers), str(adapter.folder))
        try:
            await self._add(adapter, request)
            await self._check(adapter, request)
        except BaseException:
            # vLLM may have given it a place even if it has failed in the middle.
            self._requests.withdraw(adapter.digest)
            await self._remove(request)
            raise
        return request

    async def _add(self, adapter: Adapter, request: "LoRARequest") -> None:
        try:
            loaded = await self._requests.answer(self._llm.add_lora(request))
        except (EngineDied, EngineNotReady):
            raise
        except Exception as error:
            self._requests.check()
            # vLLM's own process raised it, so that only its text is left.
            raise adapter.refused(f"vLLM refuses it ({error})") from error
        if not loaded:
            raise adapter.refused("vLLM does not load it")

    async def _check(self, adapter: Adapter, request: "LoRARequest") -> None:
        """Raise ConfigError if vLLM applies less of an adapter than all, or something else."""
        if not await asyncio.to_thread(adapter.is_unchanged):
            raise adapter.refused("its files changed while it was loaded")
        if self._llm.vllm_config.parallel_config.worker_extension_cls == WORKER_EXTENSION:
            asked = self._llm.collective_rpc("unapplied_adapter_layers", args=(request.lora_int_id,))
            ranks = await self._requests.answer(asked)
            # vLLM passes over them without a word.
            if unapplied := sorted({layer for layers in ranks for layer in layers}):
                layers = unapplied[0] + (f" and {len(unapplied) - 1} more" if len(unapplied) > 1 else "")
                raise adapter.refused(f"it is for another model: vLLM applies nothing of its layer {layers}")
        self._requests.offer(adapter.digest, request)
        # An engine may be configured to tell nothing of probabilities.
        with suppress(InvalidRequest):
            if await self._probabilities(adapter.digest) == await self._probabilities(""):
                raise adapter.refused("it changes nothing: it is not trained, or for another model")

    async def _leave(self, digest: str) -> None:
        """Free an adapter's place, unless it is offered again before."""
        await self._requests.unused(digest)
        async with self._changing:
            del self._leaving[digest]
            await self._remove(self._loaded.pop(digest))

    async def _remove(self, request: "LoRARequest") -> None:
        """Have vLLM free an adapter's place. If it fails to, the place counts as taken."""
        self._lost += 1
        try:
            await self._requests.answer(self._llm.remove_lora(request.lora_int_id))
        except (EngineDied, EngineNotReady):
            return
        except Exception:
            log.exception("adapter_not_removed", digest=request.lora_name)
            return
        self._lost -= 1

    async def _probabilities(self, adapter: str) -> list[float]:
        """Natural logarithms of the most likely probabilities of the first token after a fixed prompt."""
        params = sampling_params(Sampling(max_tokens=1, logprobs=True, alternatives=_COMPARED))
        found: list[float] = []
        async for output in self._requests.generate(f"probe-{uuid4().hex}", _PROBE, uuid4().hex, params, adapter):
            found += [token.logprob for position in output.outputs[0].logprobs or () for token in position.values()]
        return found

    async def _to_the_end(self, change: Coroutine[Any, Any, T]) -> T:
        task = asyncio.create_task(change)
        self._changes.add(task)
        task.add_done_callback(self._changed)
        await asyncio.wait({task})
        if task.cancelled():
            raise EngineNotReady("the engine is closed")
        return task.result()

    def _changed(self, task: asyncio.Task[Any]) -> None:
        self._changes.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            # Its caller may be gone.
            log.info("adapter_not_loaded", error=str(error))
