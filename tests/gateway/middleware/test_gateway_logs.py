"""Log lines of requests and queries: they have ids, but no contents."""

import io
import json
import logging
import sys

import pytest
import structlog
from gateway_fakes import MODEL, eventually
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import format_trace_id

from gateway.query.tracing import Tracing
from protocol.errors import EngineDied, Overloaded
from protocol.logs import configure_logging

MARKER = "xyzzyplugh"
KEY = f"key-{MARKER}"
KEYS = [{"secret": KEY, "tenant": "default"}]
ASKED = {"query": f"Where is {MARKER}?"}


@pytest.fixture
def lines(monkeypatch):
    """Returns a function that takes the new log lines, from debug level on, parsed from JSON."""
    written = io.StringIO()
    with monkeypatch.context() as patched:
        patched.setattr(sys, "stderr", written)
        configure_logging("debug", "json")

    def take() -> list[dict]:
        text = written.getvalue()
        written.seek(0)
        written.truncate()
        return [json.loads(line) for line in text.splitlines()]

    yield take
    structlog.reset_defaults()


async def test_every_log_line_of_a_query_has_its_id(served, lines):
    phases = served.stack.phases
    phases.failing = {"prefilled": RuntimeError("deaf"), "complete": RuntimeError("deaf")}
    answer = await served.client.post("/query", json=ASKED, headers={"X-Request-Id": "mine"})
    logged = []

    def all_written() -> bool:
        logged.extend(lines())
        return {"request", "prefill_not_reported", "lease_not_released"} <= {line["event"] for line in logged}

    await eventually(all_written)
    of_query = [line for line in logged if line["event"] in ("prefill_not_reported", "lease_not_released")]
    assert {line["request_id"] for line in of_query} == {"mine"}
    assert {line["query_id"] for line in of_query} == {answer.json()["query_id"]}


async def test_log_lines_have_the_trace_id(served, lines):
    tracer = TracerProvider(shutdown_on_exit=False).get_tracer("tests")
    served.app.state.gateway.runs._pipeline.tracing = Tracing(tracer)
    served.stack.phases.failing = {"decode": RuntimeError("a defect")}
    trace = "4bf92f3577b34da6a3ce929d0e0e4736"
    await served.client.post("/query", json=ASKED, headers={"traceparent": f"00-{trace}-00f067aa0ba902b7-01"})
    (defect,) = (line for line in lines() if line["event"] == "query_defect")
    assert defect["trace_id"] == trace == format_trace_id(int(trace, 16))
    assert int(defect["span_id"], 16)
    assert defect["request_id"]
    assert defect["query_id"].startswith("query_")


@pytest.mark.parametrize("path", ["/query", "/v1/chat/completions"])
@pytest.mark.parametrize("stream", [False, True])
async def test_questions_and_keys_are_not_logged(in_process, lines, caplog, path: str, stream: bool):
    caplog.set_level(logging.DEBUG)
    body = {"/query": ASKED, "/v1/chat/completions": {"model": MODEL, "messages": [user(ASKED["query"])]}}[path]
    body = body | {"stream": stream}
    headers = {"Authorization": f"Bearer {KEY}"}
    failures = [
        {},
        {"search": RuntimeError("a defect")},
        {"queue": Overloaded("full")},
        {"decode": EngineDied("gone")},
        {"complete": RuntimeError("deaf")},
    ]
    async with in_process(api_keys=KEYS, admin_key=f"admin-{MARKER}") as served:
        for failing in failures:
            served.stack.phases.failing = failing
            await served.client.post(path, json=body, headers=headers)
            await served.client.post(f"{path}?q={MARKER}", json=body, headers={"Authorization": f"Bearer not-{KEY}"})
            await served.client.post(path, content=json.dumps(body)[:-1], headers=headers)
            await served.client.post(path, json=body | {"top_k": MARKER}, headers=headers)
    logged = lines()
    assert sum(line["event"] == "request" for line in logged) == 4 * len(failures)
    assert any("exception" in line for line in logged)
    assert MARKER not in json.dumps(logged)
    # The tests' own client logs the URL.
    assert not any(MARKER in record.getMessage() for record in caplog.records if record.name != "httpx")


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


async def test_request_is_one_line_without_its_tenant(in_process, lines):
    async with in_process(api_keys=[{"secret": KEY, "tenant": f"tenant-{MARKER}"}]) as served:
        lines()
        headers = {"Authorization": f"Bearer {KEY}", "X-Request-Id": "mine"}
        await served.client.get("/v1/collections", headers=headers)
        (line,) = lines()
    duration_ms, timestamp = line.pop("duration_ms"), line.pop("timestamp")
    assert 0 <= duration_ms < 10_000
    assert timestamp.endswith("Z")
    assert line == {
        "event": "request",
        "level": "info",
        "request_id": "mine",
        "method": "GET",
        "path": "/v1/collections",
        "status": 200,
    }


async def test_successful_monitoring_requests_are_logged_at_debug(served, lines):
    lines()
    for path in ("/healthz", "/readyz", "/metrics"):
        await served.client.get(path)
    assert {line["level"] for line in lines()} == {"debug"}
    served.stack.phases.failing["engine_ready"] = EngineDied("gone")
    await served.client.get("/readyz")
    assert [line["level"] for line in lines() if line["event"] == "request"] == ["info"]


@pytest.mark.parametrize(
    ("level", "expected"), [("debug", ["d", "i", "w"]), ("info", ["i", "w"]), ("warning", ["w"]), ("error", [])]
)
def test_log_level_and_format_are_configurable(capsys, level: str, expected: list[str]):
    try:
        configure_logging(level, "json")
        log = structlog.get_logger("tests")
        log.debug("d")
        log.info("i")
        log.warning("w")
        assert [json.loads(line)["event"] for line in capsys.readouterr().err.splitlines()] == expected
        configure_logging("info", "console")
        log.info("for people", number=1)
        written = capsys.readouterr().err
        assert "for people" in written
        assert not written.startswith("{")
    finally:
        structlog.reset_defaults()
