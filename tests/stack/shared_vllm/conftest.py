"""One stack with a real vLLM, embedder and Redis for all tests of this folder."""

import pytest
from redis_server import RedisServer
from stacks import FREEDONIA, SYLVANIA, starting

VLLM = {
    "RAGTREE_GENERATOR__MAX_MODEL_LEN": "2048",
    # Two running answers are enough to make a third query wait.
    "RAGTREE_CONTROLLER__MAX_RUNNING": "2",
    "RAGTREE_RETRIEVER__GRAPH__KIND": "rules",
    "RAGTREE_CONTROLLER__GRAPH_ATTENTION": "dependency",
}


@pytest.fixture(scope="package")
def shared_redis():
    server = RedisServer().start()
    yield server
    server.stop()


@pytest.fixture(scope="package")
def vllm_stack(tmp_path_factory, shared_redis):
    with starting(tmp_path_factory) as start:
        stack = start({**VLLM, "RAGTREE_REDIS__URL": shared_redis.url}, "vllm")
        stack.ingest("countries", {"freedonia": FREEDONIA, "sylvania": SYLVANIA})
        yield stack
