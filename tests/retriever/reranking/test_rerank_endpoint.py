"""The reranker over HTTP, against a real server on this machine."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from pydantic import ValidationError
from rerank_server import RerankServer, cohere, serving, tei

from protocol.errors import ConfigError, RerankFailed
from protocol.retrieval import RerankFailure
from retriever.reranking.endpoint import EndpointReranker
from retriever.reranking.factory import build_reranker
from retriever.settings import EndpointRerankerSettings

TEXTS = ["number 1", "number 3", "number 2"]


@asynccontextmanager
async def client_of(server: RerankServer, **changes) -> AsyncIterator[EndpointReranker]:
    reranker = build_reranker(server.settings(**changes))
    try:
        yield reranker
    finally:
        await reranker.close()


async def failure_of(reranker: EndpointReranker) -> RerankFailure:
    with pytest.raises(RerankFailed) as failed:
        await reranker.scores("q", TEXTS, 2)
    return failed.value.failure


async def test_cohere_shape():
    with serving(cohere) as server:
        async with client_of(server, api_key="secret") as reranker:
            assert list(await reranker.scores("which?", TEXTS, 3)) == [1.0, 3.0, 2.0]
        assert server.requests == [{"model": "m", "query": "which?", "documents": TEXTS, "top_n": 3}]
        assert server.headers[0]["Authorization"] == "Bearer secret"


async def test_texts_that_a_reply_leaves_out_have_no_score():
    with serving(cohere) as server:
        async with client_of(server) as reranker:
            assert list(await reranker.scores("which?", TEXTS, 2)) == [None, 3.0, 2.0]
            assert len(await reranker.scores("which?", TEXTS, 50)) == 3
        assert server.requests[1]["top_n"] == 3
        assert "Authorization" not in server.headers[0]


async def test_tei_shape():
    with serving(tei) as server:
        async with client_of(server, shape="tei") as reranker:
            assert list(await reranker.scores("which?", TEXTS, 2)) == [1.0, 3.0, 2.0]
        assert server.requests == [{"query": "which?", "texts": TEXTS, "truncate": True}]


async def test_model_is_left_out_if_none_is_named():
    with serving(cohere) as server:
        async with client_of(server, model=None) as reranker:
            await reranker.scores("which?", TEXTS, 2)
        assert "model" not in server.requests[0]


NONSENSE = {
    "no JSON": b"<html>",
    "no text": b"\xff\xfe",
    "another shape": b'[{"index": 0, "score": 1}]',
    "NaN": b'{"results": [{"index": 0, "relevance_score": NaN}]}',
    "too large": b'{"results": [{"index": 0, "relevance_score": 1e999}]}',
    "words": b'{"results": [{"index": 0, "relevance_score": "high"}]}',
    "null": b'{"results": [{"index": 0, "relevance_score": null}]}',
    "index above": b'{"results": [{"index": 3, "relevance_score": 1}]}',
    "index below": b'{"results": [{"index": -1, "relevance_score": 1}]}',
    "index a share": b'{"results": [{"index": 0.5, "relevance_score": 1}]}',
    "index twice": b'{"results": [{"index": 1, "relevance_score": 1}, {"index": 1, "relevance_score": 2}]}',
    "empty": b"",
    "endless": b'{"results": [' + b" " * 5_000_000 + b"]}",
}


@pytest.mark.parametrize("reply", NONSENSE.values(), ids=NONSENSE.keys())
async def test_nonsense_is_invalid(reply):
    with serving(lambda _: reply) as server:
        async with client_of(server) as reranker:
            assert await failure_of(reranker) is RerankFailure.INVALID


@pytest.mark.parametrize(
    ("status", "failure"),
    [
        (500, RerankFailure.UNAVAILABLE),
        (503, RerankFailure.UNAVAILABLE),
        (429, RerankFailure.UNAVAILABLE),
        (408, RerankFailure.UNAVAILABLE),
        (401, RerankFailure.REFUSED),
        (413, RerankFailure.REFUSED),
        (422, RerankFailure.REFUSED),
        (302, RerankFailure.REFUSED),
        (204, RerankFailure.REFUSED),
    ],
)
async def test_statuses(status, failure):
    with serving() as server:
        server.status = status
        async with client_of(server) as reranker:
            assert await failure_of(reranker) is failure


async def test_gone_endpoint_is_unavailable():
    with serving() as server:
        reranker = EndpointReranker(server.settings())
    assert await failure_of(reranker) is RerankFailure.UNAVAILABLE
    await reranker.close()


async def test_silent_endpoint_times_out():
    with serving() as server:
        server.released.clear()
        async with client_of(server, timeout_s=0.05) as reranker:
            assert await failure_of(reranker) is RerankFailure.TIMEOUT
            server.released.set()
        async with client_of(server) as reranker:
            assert len(await reranker.scores("q", TEXTS, 2)) == 3


async def test_endpoint_that_sends_byte_by_byte_times_out():
    with serving() as server:
        server.drips = True
        async with client_of(server, timeout_s=0.2) as reranker:
            assert await failure_of(reranker) is RerankFailure.TIMEOUT


@pytest.mark.parametrize("changes", [{"url": "http://[::1"}, {"api_key": "käy\N{SNOWMAN}"}])
def test_unusable_address_or_key_is_a_config_error(changes):
    with pytest.raises(ConfigError):
        build_reranker(EndpointRerankerSettings(**{"url": "http://127.0.0.1:1/rerank", "shape": "cohere", **changes}))


@pytest.mark.parametrize(
    "changes", [{"url": "file:///etc/passwd"}, {"shape": "guess"}, {"candidates": 0}, {"timeout_s": 0}]
)
def test_settings_are_checked(changes):
    with pytest.raises(ValidationError):
        EndpointRerankerSettings(**{"url": "http://127.0.0.1:1/rerank", "shape": "cohere", **changes})
