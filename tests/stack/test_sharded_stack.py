"""A stack whose index has two shards: answers rest on both; a lost one is reported, or fails the search.

Whether it is reported or fails is the gateway's setting. So a second gateway in front of the same parts has the other.
One of the shards reranks the results of both, unless a query says otherwise. The last test stops the stack.
"""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest
from rerank_server import serving
from reranked_answers import RerankedAnswers, ingest_numbered, reranking_by
from stacks import FAKE, PATIENCE_S, until

pytestmark = [pytest.mark.ray, pytest.mark.prove("retriever/", "services/", "gateway/query/")]

SHARDED = {
    **FAKE,
    "RAGTREE_RETRIEVER__SHARDS__COUNT": "2",
    "RAGTREE_RETRIEVER__SHARDS__ON_LOST": "partial",
}
DOCUMENTS = {f"country {number}": f"The capital of country {number} is city {number}." for number in range(20)}
QUESTION = {"query": "What is the capital of country 7?", "collection": "countries", "top_k": 20, "rerank": False}

SECOND_GATEWAY = """
import asyncio, sys
import services, ray, uvicorn
from services.app import build_app
from services.config import load_config

async def main():
    await uvicorn.Server(uvicorn.Config(build_app(load_config()), port=int(sys.argv[2]), log_config=None)).serve()

ray.init(address=sys.argv[1], logging_level="ERROR", log_to_driver=False)
asyncio.run(main())
"""


@pytest.fixture(scope="module")
def server():
    with serving() as server:
        yield server


@pytest.fixture(scope="module")
def sharded(start_stack, server):
    stack = start_stack({**SHARDED, **reranking_by(server)}, "sharded")
    # One shard is enough to be ready, but not to ingest.
    until(lambda: has_all_shards(stack))
    stack.ingest("countries", DOCUMENTS)
    return stack


@pytest.fixture(scope="module")
def reranked(sharded):
    ingest_numbered(sharded)
    return sharded


@pytest.fixture
def strict_gateway(sharded, tmp_path):
    """A gateway that fails a search with a lost shard."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    environment = {
        **os.environ,
        **sharded.environment,
        "RAGTREE_DATA_DIR": str(tmp_path),
        "RAGTREE_RETRIEVER__SHARDS__ON_LOST": "error",
    }
    command = [sys.executable, "-c", SECOND_GATEWAY, sharded.running.ray_address, str(port)]
    with (
        subprocess.Popen(command, env=environment) as process,
        httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=120) as client,
    ):
        try:
            until(lambda: process.poll() is not None or is_ready(client))
            yield client
        finally:
            process.terminate()
            process.wait(PATIENCE_S)


def is_ready(client) -> bool:
    try:
        return client.get("/readyz").status_code == 200
    except httpx.TransportError:
        return False


def has_all_shards(stack):
    """Listings are never partial."""
    with stack.client() as client:
        return client.get("/v1/collections").status_code == 200


@contextmanager
def lost_shard(stack) -> Iterator[None]:
    """A shard that hangs meanwhile, and is killed then. A killed one would be back before some query notices."""
    (replica,) = stack.processes("ServeReplica:retriever-1")
    replica.suspend()
    try:
        yield
    finally:
        replica.kill()
        replica.wait(PATIENCE_S)


class TestReranked(RerankedAnswers):
    """One of the shards reranks, after the merge."""


def test_a_lost_shard_leaves_the_answer_partial_until_it_is_back(sharded):
    whole = sharded.query(**QUESTION).json()
    assert {result["document_id"] for result in whole["results"]} == set(DOCUMENTS)
    assert (whole["partial"], whole["missing_shards"]) == (False, [])
    with lost_shard(sharded):
        partial = sharded.query(**QUESTION).json()
    assert (partial["partial"], partial["missing_shards"]) == (True, ["1"])
    expected = [result for result in whole["results"] if result["chunk_id"].startswith("0.")]
    assert [result["chunk_id"] for result in partial["results"]] == [result["chunk_id"] for result in expected]
    assert sharded.metric("ragtree_retrieval_partial_total") >= 1
    until(lambda: not sharded.query(**QUESTION).json()["partial"])


def test_a_lost_shard_fails_the_search_if_answers_must_be_whole(sharded, strict_gateway):
    assert strict_gateway.post("/query", json=QUESTION).status_code == 200
    with lost_shard(sharded):
        refused = strict_gateway.post("/query", json=QUESTION)
    assert (refused.status_code, refused.json()["error"]["code"]) in [
        (503, "retriever_not_ready"),
        (503, "shard_timeout"),
    ]
    until(lambda: strict_gateway.post("/query", json=QUESTION).status_code == 200)


def test_a_folder_of_two_shards_is_refused_to_another_number(sharded):
    sharded.stop()
    for count in ("1", "3"):
        ran = sharded.command("up", RAGTREE_SERVER__PORT="0", **{**SHARDED, "RAGTREE_RETRIEVER__SHARDS__COUNT": count})
        assert ran.returncode == 1
        assert "retriever.shards.count 2" in ran.stderr
