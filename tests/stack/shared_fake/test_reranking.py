"""Results that are reranked in the retriever's replica. ``test_sharded_stack.py`` has it with shards."""

import pytest
from reranked_answers import RerankedAnswers, ingest_numbered

pytestmark = pytest.mark.ray


@pytest.fixture(scope="module")
def reranked(fake_stack):
    ingest_numbered(fake_stack)
    return fake_stack


class TestOneRetriever(RerankedAnswers):
    """The retriever's replica reranks what it found."""
