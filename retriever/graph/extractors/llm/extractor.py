"""The extractor that asks a language model for the triplets of each chunk."""

import asyncio
from collections.abc import Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import ExitStack
from threading import Lock

import structlog
from anyio import CancelScope
from anyio.from_thread import BlockingPortal, start_blocking_portal

from protocol.errors import ConfigError, Unavailable
from protocol.graph import Triplet
from retriever.graph.extractors.base import Statement
from retriever.graph.extractors.given import placed
from retriever.graph.extractors.llm.answer import read_answer, tidied
from retriever.graph.extractors.llm.chat_endpoint import ChatEndpoint, NoAnswer
from retriever.graph.extractors.llm.prompt import PROMPT_VERSION, TRIPLETS_FORMAT, messages_about
from retriever.settings import LlmSettings
from retriever.store.incoming import SourceText

_log = structlog.get_logger(__name__)

_HARMLESS = SourceText("Warsaw lies on the Vistula.")
"""A passage that no endpoint refuses for its length, or for what it says."""

_Found = list[Statement] | None
"""The statements of a chunk; None if it cannot be read."""


class LlmExtractor:
    """Asks an endpoint about each chunk, several at a time, and once more where an answer is not readable.

    If the endpoint fails in a group, the answers that it has given are kept for the next attempt at the group. A chunk
    that it refuses cannot be read, unless it refuses every request. Thread-safe.

    All requests run on one event loop, because the client keeps its connections there. The first group starts it, in a
    separate thread.
    """

    def __init__(self, settings: LlmSettings) -> None:
        """Raises ConfigError if the address or the API key cannot be used."""
        self.fingerprint = f"llm-{PROMPT_VERSION} {settings.model}"
        self._readers = settings.concurrency
        self._endpoint = ChatEndpoint(settings, TRIPLETS_FORMAT)
        self._lock = Lock()
        self._closed = False
        self._loop = ExitStack()
        self._portal: BlockingPortal | None = None
        self._one_group = asyncio.Lock()
        self._found: dict[SourceText, _Found] = {}

    def extract(self, sources: Sequence[SourceText]) -> list[_Found]:
        """Return the statements of each chunk; None for one that cannot be read.

        Raises Unavailable if the endpoint does not answer or this is closed, and ConfigError if the endpoint refuses
        every request.
        """
        with self._lock:
            if self._closed:
                raise Unavailable("the graph's model is closed")
            extracting = self._running().start_task_soon(self._extract, sources)
        try:
            return extracting.result()
        except CancelledError as error:
            raise Unavailable("the graph's model was closed") from error

    def close(self) -> None:
        """Break off the requests that run, close the connections, and end the thread."""
        with self._lock:
            self._closed = True
            self._loop.close()

    def _running(self) -> BlockingPortal:
        if self._portal is None:
            self._portal = self._loop.enter_context(start_blocking_portal(name="retriever-graph-llm"))
            self._loop.callback(self._portal.call, self._end, self._portal)
        return self._portal

    async def _end(self, portal: BlockingPortal) -> None:
        # The portal cancels this task with the others, and what is broken off still uses the connections.
        with CancelScope(shield=True):
            await portal.stop(cancel_remaining=True)
            async with self._one_group:
                await self._endpoint.close()

    async def _extract(self, sources: Sequence[SourceText]) -> list[_Found]:
        async with self._one_group:
            self._found = {source: self._found[source] for source in sources if source in self._found}
            left = iter([source for source in dict.fromkeys(sources) if source not in self._found])
            # Each reads until it fails. So a failure costs none of the answers that the others wait for.
            readers = [self._read(left) for _ in range(self._readers)]
            for failure in await asyncio.gather(*readers, return_exceptions=True):
                if failure is not None:
                    raise failure
            found, self._found = self._found, {}
            return [found[source] for source in sources]

    async def _read(self, left: Iterator[SourceText]) -> None:
        for source in left:
            triplets = await self._triplets(source)
            self._found[source] = None if triplets is None else placed(source.text, tidied(triplets))

    async def _triplets(self, source: SourceText) -> Sequence[Triplet] | None:
        """The triplets that the model reads; None if it gives no readable answer, or the endpoint refuses the chunk."""
        broken: Sequence[Triplet] = ()
        reason = "its answer is not readable"
        for again in (False, True):
            try:
                reply = await self._endpoint.ask(messages_about(source, again))
            except NoAnswer as error:
                await self._check_endpoint(error)
                reason = str(error)
                continue
            answer = read_answer(reply.text)
            if answer.whole or (answer.begins and reply.cut):
                return answer.triplets
            broken = max(broken, answer.triplets, key=len)
        if broken:
            return broken
        _log.warning("the graph's model cannot read a chunk", characters=len(source.text), reason=reason)
        return None

    async def _check_endpoint(self, failure: NoAnswer) -> None:
        """Raise ConfigError if the endpoint answers no request at all."""
        try:
            await self._endpoint.ask(messages_about(_HARMLESS))
        except NoAnswer:
            raise ConfigError(f"the graph's model answers no request: {failure}") from failure
