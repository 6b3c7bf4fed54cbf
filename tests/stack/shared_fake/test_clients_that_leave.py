"""Clients that read slowly, stall or disconnect leave no slot, plan or stream behind. A whole stack, fake engine."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

import pytest
from rude_clients import misbehave
from stacks import until

pytestmark = pytest.mark.ray

ASKED = {"query": "What is the capital of Freedonia?", "collection": "countries", "max_tokens": 40}


def under_way(stack) -> tuple[int, int]:
    with stack.client() as client:
        stats = client.get("/v1/admin/cache/stats").raise_for_status().json()
    return stats["running"], stats["queued"]


def test_leaving_clients_leave_nothing_behind_and_others_are_answered(fake_stack):
    parts = urlsplit(fake_stack.url)
    whole = fake_stack.query(**ASKED).json()["output_text"]
    with ThreadPoolExecutor(1) as pool:
        rude = pool.submit(lambda: asyncio.run(misbehave((parts.hostname, parts.port), ASKED, clients=66, seed=1)))
        while not rude.done():
            assert fake_stack.query(**ASKED).json()["output_text"] == whole
        rude.result()
    until(lambda: under_way(fake_stack) == (0, 0))
    log = (fake_stack.folder / "run" / "stack.log").read_text()
    assert "Traceback" not in log
    assert '"defect"' not in log
