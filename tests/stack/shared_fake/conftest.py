"""One stack with a fake engine and embedder for all tests of this folder."""

import pytest
from stacks import FAKE, FREEDONIA, SYLVANIA


@pytest.fixture(scope="session")
def fake_stack(start_shared_stack):
    stack = start_shared_stack(FAKE, "fake")
    stack.ingest("countries", {"freedonia": FREEDONIA, "sylvania": SYLVANIA})
    return stack
