"""One stack with a fake engine and embedder for all tests of this folder. A server of the tests reranks its results."""

import pytest
from rerank_server import serving
from reranked_answers import reranking_by
from stacks import FAKE, FREEDONIA, SYLVANIA


@pytest.fixture(scope="session")
def server():
    with serving() as server:
        yield server


@pytest.fixture(scope="session")
def fake_stack(start_shared_stack, server):
    stack = start_shared_stack({**FAKE, **reranking_by(server)}, "fake")
    stack.ingest("countries", {"freedonia": FREEDONIA, "sylvania": SYLVANIA})
    return stack
