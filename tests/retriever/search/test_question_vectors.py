"""The vectors of questions are remembered, for each tenant alone."""

import numpy as np
import pytest
from opentelemetry.trace import NoOpTracer

from protocol.errors import Unavailable
from protocol.retrieval import SearchRequest
from retriever.embedding.hashing import HashingEmbedder
from retriever.search import question_vectors
from retriever.search.question_vectors import QuestionEmbedder, QuestionVectors


class Counting(HashingEmbedder):
    """Notes the questions that it embeds; of those in ``away``, it embeds none."""

    def __init__(self) -> None:
        super().__init__()
        self.embedded: list[str] = []
        self.away: set[str] = set()

    def embed_query(self, text):
        if text in self.away:
            raise Unavailable("the endpoint is away")
        self.embedded.append(text)
        return super().embed_query(text)


@pytest.fixture
def embedder():
    return Counting()


@pytest.fixture
def questions(embedder):
    return QuestionEmbedder(embedder, NoOpTracer())


def asked(questions, tenant: str, query: str, context: str = "") -> QuestionVectors:
    return QuestionVectors(SearchRequest(tenant, "default", query, 3, context=context), questions)


def test_a_question_asked_again_is_not_embedded_again(questions, embedder):
    first = asked(questions, "a", "where?").searched()
    again = asked(questions, "a", "where?").searched()
    assert (first == again).all()
    assert (first == HashingEmbedder().embed_query("where?")).all()
    assert embedder.embedded == ["where?"]


def test_what_another_tenant_has_asked_is_embedded(questions, embedder):
    """Otherwise the time of a search would tell what others have asked."""
    for tenant in ("a", "b"):
        asked(questions, tenant, "where?").searched()
    assert embedder.embedded == ["where?", "where?"]


def test_only_what_is_new_in_a_context_is_embedded(questions, embedder):
    asked(questions, "a", "where?").searched()
    request = SearchRequest("a", "default", "where?", 3, context="Who?")
    mean = QuestionVectors(request, questions).searched()
    assert embedder.embedded == ["where?", request.in_context]
    both = np.stack([HashingEmbedder().embed_query(text) for text in embedder.embedded])
    assert mean == pytest.approx(both.mean(0) / np.linalg.norm(both.mean(0)))


def test_the_oldest_questions_are_forgotten(embedder, monkeypatch):
    monkeypatch.setattr(question_vectors, "_REMEMBERED", 2)
    questions = QuestionEmbedder(embedder, NoOpTracer())
    for query in ("one", "two", "one", "three", "one", "two"):
        asked(questions, "a", query).searched()
    assert embedder.embedded == ["one", "two", "three", "two"]


def test_a_failure_is_not_remembered(questions, embedder):
    embedder.away.add("where?")
    with pytest.raises(Unavailable):
        asked(questions, "a", "where?").searched()
    embedder.away.clear()
    assert asked(questions, "a", "where?").searched().any()
