"""The reranker that calls an HTTP endpoint, and the shapes of its messages."""

import asyncio
from collections.abc import Mapping, Sequence
from http import HTTPStatus

import httpx
import msgspec

from protocol.errors import ConfigError, RerankFailed
from protocol.retrieval import RerankFailure
from retriever.reranking.base import Scores
from retriever.settings import EndpointRerankerSettings

_LONGEST_REPLY = 4 * 1024 * 1024
"""In bytes. Some endpoints send the texts back."""

_CONNECTIONS = 32
"""Requests at once."""

_OVERLOADED = {HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS}


class Rank(msgspec.Struct):
    """The score of the text at ``index``, counted from 0."""

    index: int
    score: float


class _CohereRank(Rank):
    score: float = msgspec.field(name="relevance_score")


class _CohereReply(msgspec.Struct):
    results: list[_CohereRank]


class EndpointReranker:
    """Calls a rerank endpoint over HTTP. Raises ConfigError if the address or the key cannot be used.

    A reply may leave texts out. It is invalid as a whole if it scores a text twice, or one that it was not sent.
    """

    def __init__(self, settings: EndpointRerankerSettings) -> None:
        self._settings = settings
        # Replies are not compressed, so that their length is known before they are in memory.
        headers = {"Content-Type": "application/json", "Accept-Encoding": "identity"}
        if settings.api_key is not None:
            headers["Authorization"] = f"Bearer {settings.api_key.get_secret_value()}"
        try:
            self._url = httpx.URL(settings.url)
            self._client = httpx.AsyncClient(
                headers=headers,
                timeout=settings.timeout_s,
                limits=httpx.Limits(max_connections=_CONNECTIONS),
            )
        except (httpx.InvalidURL, UnicodeEncodeError) as error:
            raise ConfigError(f"the rerank endpoint cannot be used: {error}") from error

    async def scores(self, query: str, texts: Sequence[str], wanted: int) -> Scores:
        """Return the score of each text, None for those that the reply leaves out. Raises RerankFailed."""
        body = msgspec.json.encode(self._request(query, texts, wanted))
        try:
            # httpx's own limits are for each read.
            async with asyncio.timeout(self._settings.timeout_s):
                reply = await self._reply(body)
            ranks = self._ranks(reply)
        except (TimeoutError, httpx.TimeoutException) as error:
            limit_s = self._settings.timeout_s
            raise RerankFailed(f"no answer within {limit_s:g} s", failure=RerankFailure.TIMEOUT) from error
        except httpx.HTTPError as error:
            raise RerankFailed(f"{type(error).__name__}: {error}") from error
        except msgspec.DecodeError as error:
            raise RerankFailed(f"the reply does not parse: {error}", failure=RerankFailure.INVALID) from error
        return _by_text(ranks, len(texts))

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    def _request(self, query: str, texts: Sequence[str], wanted: int) -> Mapping[str, object]:
        """The request that asks for the ``wanted`` best texts, or for all, in the endpoint's shape."""
        if self._settings.shape == "tei":
            # Without ``truncate``, it refuses texts that are too long for its model.
            return {"query": query, "texts": texts, "truncate": True}
        named = {} if self._settings.model is None else {"model": self._settings.model}
        return {**named, "query": query, "documents": texts, "top_n": min(wanted, len(texts))}

    def _ranks(self, reply: bytearray) -> Sequence[Rank]:
        """The scores in a reply: ``[{index, score}]``, or ``{results: [{index, relevance_score}]}``."""
        if self._settings.shape == "tei":
            return msgspec.json.decode(reply, type=list[Rank])
        return msgspec.json.decode(reply, type=_CohereReply).results

    async def _reply(self, body: bytes) -> bytearray:
        async with self._client.stream("POST", self._url, content=body) as response:
            status = response.status_code
            if status != HTTPStatus.OK:
                passing = status in _OVERLOADED or status >= HTTPStatus.INTERNAL_SERVER_ERROR
                failure = RerankFailure.UNAVAILABLE if passing else RerankFailure.REFUSED
                raise RerankFailed(f"the reply's status is {status}", failure=failure)
            reply = bytearray()
            async for part in response.aiter_raw():
                reply += part
                if len(reply) > _LONGEST_REPLY:
                    raise RerankFailed("the reply is too long", failure=RerankFailure.INVALID)
            return reply


def _by_text(ranks: Sequence[Rank], count: int) -> Scores:
    scores: list[float | None] = [None] * count
    for rank in ranks:
        if not 0 <= rank.index < count:
            raise RerankFailed(f"a score for text {rank.index} of {count}", failure=RerankFailure.INVALID)
        if scores[rank.index] is not None:
            raise RerankFailed(f"two scores for text {rank.index}", failure=RerankFailure.INVALID)
        scores[rank.index] = rank.score
    return scores
