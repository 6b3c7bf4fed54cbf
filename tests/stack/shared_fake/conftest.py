"""One stack with a fake engine and embedder for all tests of this folder. A server of the tests reranks its results."""

import pytest
from rerank_server import serving
from reranked_answers import reranking_by
from stacks import FAKE, FREEDONIA, SYLVANIA, starting


@pytest.fixture(scope="package")
def server():
    with serving() as server:
        yield server


@pytest.fixture(scope="package")
def fake_stack(tmp_path_factory, server):
    with starting(tmp_path_factory) as start:
        stack = start({**FAKE, **reranking_by(server)}, "fake")
        stack.ingest("countries", {"freedonia": FREEDONIA, "sylvania": SYLVANIA})
        yield stack
