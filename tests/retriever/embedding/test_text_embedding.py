"""Texts of callers get the vectors that documents and queries get."""

import numpy as np
import pytest
from retriever_cases import running, settings
from sharded_cases import running_shards

from protocol.errors import InvalidRequest, RetrieverNotReady, UnknownModel
from protocol.retrieval import EmbeddingRequest
from retriever.build import build_retriever
from retriever.embedding.base import embed_request
from retriever.embedding.hashing import HashingEmbedder
from retriever.embedding.sentence_transformer import SentenceTransformerEmbedder
from retriever.settings import HashingSettings

TEXTS = ("The river runs to the sea.", "A mill stands by the river.", "Quarterly results")


def vectors(found) -> np.ndarray:
    return np.stack([np.frombuffer(vector, "<f4") for vector in found.vectors])


@pytest.mark.parametrize("embedder", [HashingEmbedder, SentenceTransformerEmbedder])
def test_vectors_are_those_of_the_embedder(embedder):
    embedder = embedder()
    as_documents = embed_request(embedder, EmbeddingRequest(TEXTS, embedder.name))
    as_queries = embed_request(embedder, EmbeddingRequest(TEXTS, embedder.name, "query", embedder.dimension))
    np.testing.assert_allclose(vectors(as_documents), embedder.embed_documents(TEXTS), atol=1e-6)
    np.testing.assert_allclose(vectors(as_queries)[1], embedder.embed_query(TEXTS[1]), atol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(vectors(as_documents), axis=1), 1, atol=1e-5)
    counted = sum(len(embedder.tokenizer.encode(text, add_special_tokens=False).ids) for text in TEXTS)
    assert as_documents.tokens == counted > len(TEXTS)


@pytest.mark.parametrize(
    ("request_", "error", "param"),
    [
        (EmbeddingRequest(TEXTS, "another"), UnknownModel, "model"),
        (EmbeddingRequest(TEXTS, "hashing", dimensions=3), InvalidRequest, "dimensions"),
        (EmbeddingRequest(("short", "word " * 9), "hashing"), InvalidRequest, "input"),
    ],
)
def test_what_is_refused(request_, error, param):
    with pytest.raises(error) as caught:
        embed_request(HashingEmbedder(HashingSettings(max_tokens=8)), request_)
    assert caught.value.param == param


async def test_a_retriever_embeds_once_it_has_started(tmp_path):
    stopped = build_retriever(settings(), tmp_path / "stopped")
    with pytest.raises(RetrieverNotReady):
        await stopped.embed(EmbeddingRequest(TEXTS, "hashing"))
    async with running(tmp_path / "running") as retriever:
        found = await retriever.embed(EmbeddingRequest(TEXTS, "hashing"))
    np.testing.assert_allclose(vectors(found), HashingEmbedder().embed_documents(TEXTS), atol=1e-6)


async def test_any_shard_that_is_there_embeds(tmp_path):
    async with running_shards(tmp_path, 2) as (retriever, shards):
        await shards[0].close()
        with pytest.raises(RetrieverNotReady):
            await retriever.ready()
        assert len((await retriever.embed(EmbeddingRequest(TEXTS, "hashing"))).vectors) == len(TEXTS)
