import asyncio
import logging

import pytest
from gateway_fakes import eventually
from structlog.testing import capture_logs

from protocol.plans import PlanOutcome

BODIES = {
    "json": ("/query", {"query": "x"}),
    "sse": ("/query", {"query": "x", "stream": True}),
    "chat": ("/v1/chat/completions", {"model": "fake-model", "messages": [{"role": "user", "content": "x"}]}),
    "chat_sse": (
        "/v1/chat/completions",
        {"model": "fake-model", "messages": [{"role": "user", "content": "x"}], "stream": True},
    ),
}

UPLOADS = {
    "text": ("PUT", "/v1/collections/default/documents/d", "text/plain", b"the first half"),
    "json": ("PUT", "/v1/collections/default/documents/d", "application/json", b'{"text": "whole"}'),
    "batch": ("POST", "/v1/collections/default/documents:batch", "application/x-ndjson", b'{"id": "d", "text": "x"}\n'),
}


@pytest.mark.parametrize("kind", BODIES)
@pytest.mark.parametrize("phase", ["search", "on_candidates", "second_stage", "queue", "prefill", "decode"])
async def test_disconnect_cancels_the_query(over_http, kind: str, phase: str):
    async with over_http() as live:
        stack = live.stack
        stack.phases.held.add(phase)
        path, body = BODIES[kind]
        asking = asyncio.create_task(live.client.post(path, json=body))
        await stack.phases.reached[phase].wait()
        asking.cancel()
        await asyncio.wait({asking})
        assert asking.cancelled()

        outcomes = [PlanOutcome.CANCELLED] if phase in ("queue", "prefill", "decode") else []
        reports = stack.controller.reports
        await eventually(lambda: live.running == 0 and len(reports) == len(outcomes) and stack.at_rest)
        opened = 1 if phase in ("prefill", "decode") else 0
        assert stack.generator.calls["opened"] == opened
        await eventually(lambda: stack.generator.calls["closed"] == opened)
    # The server has shut down, so no running query can add another report.
    assert [report.outcome for report in reports] == outcomes


async def test_disconnect_during_the_stream_cancels_the_query(live):
    live.stack.generator.words = tuple(f"w{n} " for n in range(200))
    live.stack.phases.held.add("decode")
    body = {"query": "x", "stream": True, "max_tokens": 200}
    async with live.client.stream("POST", "/query", json=body) as answer:
        async for text in answer.aiter_text():
            if "output_text.delta" in text:
                break
    await eventually(lambda: bool(live.stack.controller.reports))
    (report,) = live.stack.controller.reports
    assert report.outcome is PlanOutcome.CANCELLED
    assert report.completion_tokens == 1


async def test_disconnect_does_not_affect_other_queries(live):
    live.stack.phases.held.add("decode")
    leaving, staying = (asyncio.create_task(live.client.post("/query", json={"query": "x"})) for _ in range(2))
    await eventually(lambda: live.stack.generator.calls["opened"] == 2)
    leaving.cancel()
    await asyncio.wait({leaving})
    await eventually(lambda: live.running == 1)
    live.stack.phases.released["decode"].set()
    assert (await staying).status_code == 200
    await eventually(lambda: len(live.stack.controller.reports) == 2)
    outcomes = sorted(report.outcome for report in live.stack.controller.reports)
    assert outcomes == [PlanOutcome.CANCELLED, PlanOutcome.COMPLETED]


async def test_shutdown_releases_leases(in_process, stack):
    async with in_process() as served:
        stack.phases.held.add("queue")
        asking = asyncio.create_task(served.client.post("/query", json={"query": "x"}))
        await stack.phases.reached["queue"].wait()
    assert [report.outcome for report in stack.controller.reports] == [PlanOutcome.CANCELLED]
    assert (await asking).status_code == 503


@pytest.mark.parametrize("kind", UPLOADS)
async def test_interrupted_upload_stores_nothing(live, caplog, kind: str):
    retriever = live.stack.retriever
    method, path, content_type, body = UPLOADS[kind]
    head = f"{method} {path} HTTP/1.1\r\nHost: x\r\nContent-Type: {content_type}\r\n"
    host, port = live.url.removeprefix("http://").split(":")
    with capture_logs() as logs, caplog.at_level(logging.WARNING):
        _, writer = await asyncio.open_connection(host, int(port))
        # The received part would be a valid document; only the length shows that it is incomplete.
        writer.write(f"{head}Content-Length: {len(body) + 1}\r\n\r\n".encode() + body)
        await writer.drain()
        writer.close()
        await writer.wait_closed()
        await eventually(lambda: any(line["event"] == "request" for line in logs))
        assert (retriever.uploads, retriever.batches) == ([], [])
        whole = await live.client.request(method, path, content=body, headers={"Content-Type": content_type})
        assert whole.status_code == 202
    assert len(retriever.uploads) + len(retriever.batches) == 1
    assert [(line["log_level"], line["status"]) for line in logs] == [("info", 499), ("info", 202)]
    assert caplog.records == []
