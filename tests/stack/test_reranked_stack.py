"""A stack whose results are reranked in the retriever's replica. ``test_sharded_stack.py`` has it with shards."""

import pytest
from rerank_server import serving
from reranked_answers import RerankedAnswers, ingest_numbered, reranking_by
from stacks import FAKE

pytestmark = pytest.mark.ray


@pytest.fixture(scope="module")
def server():
    with serving() as server:
        yield server


@pytest.fixture(scope="module")
def reranked(start_stack, server):
    stack = start_stack({**FAKE, **reranking_by(server)}, "reranked")
    ingest_numbered(stack)
    return stack


class TestOneRetriever(RerankedAnswers):
    """The retriever's replica reranks what it found."""
