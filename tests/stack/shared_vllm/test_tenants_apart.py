"""A tenant can tell neither by counts nor by time what another has computed. Real vLLM, gateway with keys.

The folder's stack needs no key. So a second gateway that needs keys, in a process of its own, uses the same parts.
"""

import json
import os
import subprocess
import sys
from statistics import median

import pytest

pytestmark = [pytest.mark.ray, pytest.mark.vllm]

ROUNDS = 5
GATEWAY = """
import asyncio, json, sys, time
import services, httpx, ray
from asgi_lifespan import LifespanManager
from protocol.logs import configure_logging
from services.app import build_app
from services.config import load_config

address, rounds = sys.argv[1], int(sys.argv[2])

def text(number):
    return " ".join(f"Ledger {number}-{line} lists {line * 7 % 50} barrels of salt." for line in range(45))

async def put(client, number):
    path = "/v1/collections/default/documents/ledger"
    job = (await client.put(path, content=text(number), headers={"Content-Type": "text/plain"})).raise_for_status()
    while job.json()["status"] != "completed":
        await asyncio.sleep(0.05)
        job = await client.get(f"/v1/jobs/{job.json()['job_id']}")

async def asked(client, question):
    began = time.perf_counter()
    body = {"query": question, "top_k": 1, "max_tokens": 1}
    usage = (await client.post("/query", json=body)).raise_for_status().json()["usage"]
    return {
        "ms": 1000 * (time.perf_counter() - began),
        "cached": usage["prompt_tokens_details"]["cached_tokens"],
        "prompt": usage["prompt_tokens"],
    }

async def main():
    app = build_app(load_config())
    transport = httpx.ASGITransport(app=app)
    def client(key):
        headers = {"Authorization": f"Bearer {key}"}
        return httpx.AsyncClient(transport=transport, base_url="http://gateway", headers=headers, timeout=120)
    async with LifespanManager(app), client("key-of-first") as first, client("key-of-second") as second:
        while (await first.get("/readyz")).status_code != 200:
            await asyncio.sleep(0.1)
        for number in range(rounds):
            await asyncio.gather(put(first, number), put(second, number))
            cold = await asked(first, "How much salt is listed?")
            hot = await asked(first, "How much salt is there?")
            foreign = await asked(second, "How much salt is there?")
            print(json.dumps({"cold": cold, "hot": hot, "foreign": foreign}), flush=True)

configure_logging()
ray.init(address=address, logging_level="ERROR", log_to_driver=False)
asyncio.run(main())
"""
KEYS = [{"secret": f"key-of-{tenant}", "tenant": tenant} for tenant in ("first", "second")]


@pytest.fixture(scope="module")
def measured(vllm_stack, tmp_path_factory):
    """Time and cached tokens of the first tenant's first and second question and of the second tenant's, by round."""
    ran = subprocess.run(
        [sys.executable, "-c", GATEWAY, vllm_stack.running.ray_address, str(ROUNDS)],
        env={
            **os.environ,
            **vllm_stack.environment,
            "RAGTREE_DATA_DIR": str(tmp_path_factory.mktemp("gateway")),
            "RAGTREE_GATEWAY__API_KEYS": json.dumps(KEYS),
        },
        capture_output=True,
        text=True,
        timeout=540,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    rounds = [json.loads(line) for line in ran.stdout.splitlines()]
    assert len(rounds) == ROUNDS
    return {asked: [of_round[asked] for of_round in rounds] for asked in rounds[0]}


def test_another_tenants_document_does_not_count_as_cached(measured):
    assert all(asked["cached"] > asked["prompt"] - 60 for asked in measured["hot"])
    # Not even the system prompt is shared: a tenant's first prompt is computed in full.
    assert measured["foreign"][0]["cached"] == 0
    assert max(asked["cached"] for asked in measured["foreign"]) < 140
    assert [asked["prompt"] for asked in measured["foreign"]] == [asked["prompt"] for asked in measured["hot"]]


def test_cached_document_is_not_faster_for_another_tenant(measured):
    """Within rounds, because the machine's speed changes from one to the next."""

    def share_of_cold(asked: str) -> float:
        return median(one["ms"] / cold["ms"] for one, cold in zip(measured[asked], measured["cold"], strict=True))

    assert share_of_cold("hot") <= 0.5, measured
    assert share_of_cold("foreign") >= 0.7, measured
