import asyncio

import pytest
from gateway_fakes import ANSWER, MODEL
from gateway_requests import without_chance
from sse_reading import events_of, only_terminal

from protocol.errors import EngineDied, Overloaded
from protocol.plans import PlanOutcome

QUESTION = {"query": "What is the capital?", "top_k": 3}


async def streamed(served, **changes) -> list[dict]:
    answer = await served.client.post("/query", json=QUESTION | {"stream": True} | changes)
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/event-stream")
    return events_of(answer.text)


@pytest.mark.parametrize("path", ["/query", "/v1/query"])
async def test_json_answer(served, path: str):
    answer = await served.client.post(path, json=QUESTION)
    assert answer.status_code == 200
    reply = answer.json()
    assert reply["output_text"] == "".join(ANSWER)
    assert (reply["model"], reply["status"], reply["finish_reason"]) == (MODEL, "completed", "stop")
    assert [result["document_id"] for result in reply["results"]] == ["d0", "d1", "d2"]
    assert reply["results"][1] == {
        "index": 1, "document_id": "d1", "filename": "d1.txt", "chunk_id": "d1#0", "score": 0.9,
        "dense_score": 0.9, "sparse_score": None, "attributes": {"lang": "en"},
            "title": None, "lines": {"first": 2, "last": 3}, "pages": None,
            "url": "/v1/collections/default/documents/d1/chunks/d1%230",
            "document_url": "/v1/collections/default/documents/d1",
    }  # fmt: skip
    assert reply["citations"][1] == {
        "type": "file_citation", "document_id": "d1", "filename": "d1.txt", "index": 1, "chunk_id": "d1#0",
    }  # fmt: skip
    assert reply["usage"] == {
        "prompt_tokens": 15, "completion_tokens": 6, "total_tokens": 21,
        "prompt_tokens_details": {"cached_tokens": 3, "composed_tokens": 0, "recomputed_tokens": 0},
    }  # fmt: skip


async def test_json_and_sse_are_the_same_object(served):
    whole = (await served.client.post("/query", json=QUESTION)).json()
    completed = only_terminal(await streamed(served))
    assert without_chance(completed["response"]) == without_chance(whole)
    assert whole["citations"], "comparing empty lists would prove nothing"
    assert completed["usage"] == completed["response"]["usage"]
    assert completed["timings"] == completed["response"]["timings"]


async def test_events_have_their_fields(served):
    events = await streamed(served, include=["stages"])
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert len({event["query_id"] for event in events}) == 1
    fields = {event["type"]: set(event) - {"type", "sequence_number", "query_id"} for event in events}
    assert fields == {
        "query.created": {"model", "created_at"},
        "retrieval.stage": {"stage", "elapsed_ms", "doc_ids", "final"},
        "retrieval.completed": {"results", "elapsed_ms"},
        "cache.resolved": {
            "prompt_tokens",
            "cached_tokens",
            "composed_tokens",
            "recomputed_tokens",
            "reuse",
            "fallback",
            "facts_attention",
            "facts_fallback",
            "hit_docs",
            "tiers",
        },
        "output_text.annotation.added": {"annotation"},
        "output_text.delta": {"delta"},
        "query.completed": {"response", "usage", "timings"},
    }


async def test_stage_events_are_sent_on_request_only(served):
    assert "retrieval.stage" not in {event["type"] for event in await streamed(served)}


async def test_stream_headers(served):
    answer = await served.client.post("/query", json=QUESTION | {"stream": True}, headers={"X-Request-Id": "abc-1"})
    assert answer.headers["cache-control"] == "no-cache"
    assert answer.headers["x-accel-buffering"] == "no"
    assert answer.headers["x-request-id"] == "abc-1"


async def test_accept_header_requests_a_stream(served):
    answer = await served.client.post("/query", json=QUESTION, headers={"Accept": "text/event-stream"})
    assert only_terminal(events_of(answer.text))["type"] == "query.completed"


async def test_text_is_sent_unchanged(served):
    served.stack.generator.words = ("a\n\nb ", "data: x\r\n", "naïve \u2028 \U0001f333", "")
    events = await streamed(served)
    assert only_terminal(events)["response"]["output_text"] == "a\n\nb data: x\r\nnaïve \u2028 \U0001f333"
    assert "" not in [event["delta"] for event in events if event["type"] == "output_text.delta"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("phase", "error", "status"),
    [("search", Overloaded("later"), 503), ("queue", Overloaded("full"), 503), ("search", RuntimeError("defect"), 500)],
)
async def test_early_failures_are_statuses(served, stream: bool, phase: str, error: Exception, status: int):
    served.stack.phases.failing[phase] = error
    answer = await served.client.post("/query", json=QUESTION | {"stream": stream})
    assert answer.status_code == status
    assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
    assert "defect" not in answer.text
    assert ("retry-after" in answer.headers) == (status == 503)


async def test_late_failure_is_the_terminal_event(served):
    served.stack.phases.failing["decode"] = EngineDied("the engine is gone")
    failed = only_terminal(await streamed(served))
    assert failed["type"] == "query.failed"
    assert failed["error"] == {
        "message": "the engine is gone", "type": "unavailable_error", "param": None, "code": "engine_died",
    }  # fmt: skip


async def test_late_unhandled_error_has_no_details(served):
    served.stack.phases.failing["decode"] = RuntimeError("secret path")
    failed = only_terminal(await streamed(served))
    assert failed["error"]["code"] == "internal_error"
    assert "secret" not in failed["error"]["message"]


async def test_dead_engine_is_503_for_json(served):
    served.stack.phases.failing["decode"] = EngineDied("the engine is gone")
    answer = await served.client.post("/query", json=QUESTION)
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "engine_died")


@pytest.mark.parametrize(("phase", "kind"), [("prefill", "query.failed"), ("decode", "query.incomplete")])
async def test_timeout_in_a_stream(in_process, phase: str, kind: str):
    async with in_process(query_timeout_s=0.05) as served:
        served.stack.phases.held.add(phase)
        last = only_terminal(await streamed(served))
        assert last["type"] == kind
        assert last.get("reason", last.get("error", {}).get("code")) in ("timeout", "deadline_exceeded")


async def test_timeout_in_a_json_query(in_process):
    async with in_process(query_timeout_s=0.05) as served:
        served.stack.phases.held.add("decode")
        answer = await served.client.post("/query", json=QUESTION)
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "deadline_exceeded")


async def test_idle_stream_has_pings(over_http):
    async with over_http(ping_s=0.02) as live:
        live.stack.phases.held.add("prefill")
        async with live.client.stream("POST", "/query", json=QUESTION | {"stream": True}) as answer:
            seen = ""
            async for text in answer.aiter_text():
                seen += text
                if ": ping\n\n" in seen:
                    break
        assert "event: retrieval.completed" in seen
        assert "output_text.delta" not in seen


async def test_deltas_are_sent_one_by_one(live):
    live.stack.phases.held.add("decode")
    async with live.client.stream("POST", "/query", json=QUESTION | {"stream": True}) as answer:
        seen = ""
        async for text in answer.aiter_text():
            seen += text
            if "output_text.delta" in seen:
                live.stack.phases.released["decode"].set()
        assert only_terminal(events_of(seen))["type"] == "query.completed"


async def test_request_fields_reach_search_and_sampling(served):
    body = QUESTION | {
        "query": "  padded  ", "collection": "default", "max_tokens": 5, "temperature": 0.5, "top_p": 0.9, "seed": 7,
        "filters": {"type": "and", "filters": [{"key": "lang", "type": "in", "value": ["en", 1, True]}]},
    }  # fmt: skip
    assert (await served.client.post("/query", json=body)).status_code == 200
    (request,) = served.stack.retriever.requests
    assert (request.tenant, request.collection, request.query, request.top_k) == ("default", "default", "padded", 3)
    assert request.filters.op == "and"
    (inner,) = request.filters.filters
    assert (inner.key, inner.op, inner.value) == ("lang", "in", ("en", 1.0, True))
    (sampling,) = served.stack.generator.samplings
    assert (sampling.max_tokens, sampling.temperature, sampling.top_p, sampling.seed) == (5, 0.5, 0.9, 7)


async def test_defaults_come_from_the_settings(in_process):
    async with in_process(default_top_k=2, default_max_tokens=3) as served:
        answer = await served.client.post("/query", json={"query": "x"})
        assert len(answer.json()["results"]) == 2
        assert answer.json()["usage"]["completion_tokens"] == 3


async def test_concurrent_queries_are_separate(served):
    answers = await asyncio.gather(*(served.client.post("/query", json=QUESTION) for _ in range(20)))
    assert len({answer.json()["query_id"] for answer in answers}) == 20
    reports = served.stack.controller.reports
    assert {answer.json()["query_id"] for answer in answers} == {report.query_id for report in reports}
    assert {report.outcome for report in reports} == {PlanOutcome.COMPLETED}
    assert len(reports) == 20
