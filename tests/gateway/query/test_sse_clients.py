"""Clients that read slowly, stop, or disconnect leave nothing behind and do not affect others."""

import asyncio
import gc
import json
import logging
import time
from urllib.parse import urlsplit

import pytest
from gateway_fakes import eventually
from rude_clients import misbehave
from structlog.testing import capture_logs

from gateway.query.runs import QueryRun
from gateway.query.transcript import Transcript

CLIENTS = 60
WORDS = tuple(f"{number} " * 400 for number in range(250))
"""About 500 kB of events: more than the buffers between server and client hold."""


def address(url: str) -> tuple[str, int]:
    parts = urlsplit(url)
    return parts.hostname, parts.port


def left() -> int:
    gc.collect()
    return sum(isinstance(thing, QueryRun | Transcript | asyncio.Task) for thing in gc.get_objects())


async def whole_answer(served) -> tuple[str, float]:
    """Answer of a normal client, and its time to the first event in seconds."""
    began = time.monotonic()
    first_s = None
    text = []
    async with served.client.stream("POST", "/query", json={"query": "x", "stream": True}) as answer:
        async for line in answer.aiter_lines():
            first_s = first_s or time.monotonic() - began
            if line.startswith("data: "):
                event = json.loads(line.removeprefix("data: "))
                text.append(event.get("delta", ""))
    assert event["type"] == "query.completed"
    return "".join(text), first_s


@pytest.mark.timeout(60)
async def test_misbehaving_clients_leave_nothing_behind(stack, over_http, caplog):
    stack.generator.words = WORDS
    caplog.set_level(logging.WARNING)
    with capture_logs() as logged:
        async with over_http() as served:
            await whole_answer(served)
            before, admitted = left(), len(stack.controller.admitted)
            for seed in range(3):
                rude = asyncio.create_task(misbehave(address(served.url), {"query": "x"}, CLIENTS, seed))
                while not rude.done():
                    text, first_s = await whole_answer(served)
                    assert text == "".join(WORDS)
                    assert first_s < 10
                await rude
                await eventually(lambda: stack.at_rest and not served.running)
            assert len(stack.controller.admitted) > admitted + 2 * CLIENTS
            granted = {request.query_id for request in stack.controller.admitted}
            # A plan is released in the background, after its stream.
            await eventually(lambda: granted <= {report.query_id for report in stack.controller.reports})
            told = [report.query_id for report in stack.controller.reports]
            assert len(told) == len(set(told))
            await eventually(lambda: left() <= before + 5)
    assert [record for record in logged if record["log_level"] not in ("info", "debug")] == []
    # uvicorn's warning about malformed requests, and asyncio's about writes to a reset connection.
    harmless = {"Invalid HTTP request received.", "socket.send() raised exception."}
    assert {record.getMessage() for record in caplog.records} <= harmless
