"""The stacks of the session: one with a fake engine and embedder, one with a real vLLM and a real embedder.

A module that kills or stops a whole stack, or needs other settings, starts its own with ``start_stack``.
"""

from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
from redis_server import RedisServer
from stacks import FAKE, FREEDONIA, SYLVANIA, StackUnderTest

VLLM = {
    "RAGTREE_GENERATOR__MAX_MODEL_LEN": "2048",
    "RAGTREE_GENERATOR__CPU_THREADS": "2",
    # A search of so few documents is too short for several stages, and without stages there is no speculation.
    "RAGTREE_RETRIEVER__INDEX__STAGE_MS": "0.000001",
    # Two running answers are enough to make a third query wait.
    "RAGTREE_CONTROLLER__MAX_RUNNING": "2",
    "RAGTREE_CONTROLLER__STATE_INTERVAL_S": "0.5",
}


@contextmanager
def starting(tmp_path_factory):
    """Yield a function that starts a stack. At the end, stop those that still run."""
    started: list[StackUnderTest] = []

    def start(environment, name):
        stack = StackUnderTest(tmp_path_factory.mktemp(name), environment)
        started.append(stack)
        stack.start()
        return stack

    yield start
    with ThreadPoolExecutor() as stopping:
        list(stopping.map(StackUnderTest.stop, started))


@pytest.fixture(scope="session")
def start_shared_stack(tmp_path_factory):
    """A function that starts a stack for the whole session."""
    with starting(tmp_path_factory) as start:
        yield start


@pytest.fixture(scope="module")
def start_stack(tmp_path_factory):
    """A function that starts a stack for one module. An idle stack would slow down the other modules' tests."""
    with starting(tmp_path_factory) as start:
        yield start


@pytest.fixture(scope="session")
def fake_stack(start_shared_stack):
    stack = start_shared_stack(FAKE, "fake")
    stack.ingest("countries", {"freedonia": FREEDONIA, "sylvania": SYLVANIA})
    return stack


@pytest.fixture(scope="session")
def shared_redis():
    server = RedisServer().start()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def vllm_stack(start_shared_stack, shared_redis):
    stack = start_shared_stack({**VLLM, "RAGTREE_REDIS__URL": shared_redis.url}, "vllm")
    stack.ingest("countries", {"freedonia": FREEDONIA, "sylvania": SYLVANIA})
    return stack
