"""The metrics at ``/metrics``: the gateway's own, and those of the other parts."""

import asyncio

import pytest
from gateway_fakes import ANSWER, Stack, eventually
from gateway_requests import families, value, values
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from protocol.errors import EngineDied, Overloaded, Unavailable
from protocol.kv import KvMemory

ASKED = {"query": "What is the capital of France?"}


async def test_queries_are_counted_by_outcome(served):
    assert set((await values(served, "ragtree_queries_total")).values()) == {0}, "counters must exist from the start"
    phases = served.stack.phases
    await served.client.post("/query", json=ASKED)
    await served.client.post("/query", json=ASKED | {"collection": "nowhere"})
    phases.failing["queue"] = Overloaded("full")
    await served.client.post("/query", json=ASKED)
    phases.failing = {"decode": RuntimeError("a defect"), "end": Unavailable("away")}
    await served.client.post("/query", json=ASKED)
    phases.failing = {"prefill": EngineDied("gone")}
    await served.client.post("/query", json=ASKED)
    assert await values(served, "ragtree_queries_total") == {
        ("completed",): 1,
        ("refused",): 2,
        ("failed",): 2,
        ("cancelled",): 0,
    }
    assert await values(served, "ragtree_query_failures_total") == {("internal_error",): 1, ("engine_failed",): 1}


async def test_query_of_a_disconnected_client_is_counted_as_cancelled(live):
    live.stack.phases.held.add("decode")
    async with live.client.stream("POST", "/query", json=ASKED | {"stream": True}) as answer:
        lines = answer.aiter_lines()
        await anext(lines)
        await live.stack.phases.reached["decode"].wait()
        assert await value(live, "ragtree_queries_running") == 1
        assert await value(live, "ragtree_streams_open") == 1
    await eventually(lambda: live.running == 0)
    assert await value(live, "ragtree_queries_running") == 0
    assert await values(live, "ragtree_queries_total") == {
        ("completed",): 0,
        ("refused",): 0,
        ("failed",): 0,
        ("cancelled",): 1,
    }
    while await value(live, "ragtree_streams_open"):
        await asyncio.sleep(0.002)


async def test_tokens_and_token_gaps_are_measured(served):
    await served.client.post("/query", json=ASKED)
    assert await value(served, "ragtree_completion_tokens_total") == len(ANSWER)
    mean = await value(served, "ragtree_time_per_output_token_seconds_sum")
    longest = await value(served, "ragtree_longest_token_gap_seconds_sum")
    assert 0 < mean <= longest < 1
    await served.client.post("/query", json=ASKED | {"max_tokens": 1})
    assert await value(served, "ragtree_time_per_output_token_seconds_count") == 1, "one token has no gaps"


async def test_accepted_uploads_are_counted(served):
    text, lines = "Paris.", '{"id": "a", "text": "b"}\n'
    plain, jsonl = {"Content-Type": "text/plain"}, {"Content-Type": "application/x-ndjson"}
    await served.client.put("/v1/collections/default/documents/d9", content=text, headers=plain)
    await served.client.put("/v1/collections/default/documents/d9", content=" ", headers=plain)
    await served.client.post("/v1/collections/default/documents:batch", content=lines, headers=jsonl)
    assert await values(served, "ragtree_uploads_total") == {("document",): 1, ("batch",): 1}
    assert await values(served, "ragtree_upload_bytes_total") == {("document",): len(text), ("batch",): len(lines)}


async def test_requests_are_counted_by_route_template(served):
    await served.client.get("/v1/collections/secret/documents/private")
    await served.client.get("/no/such/path")
    await served.client.get("/healthz")
    counted = await values(served, "ragtree_http_requests_total")
    assert counted["/v1/collections/{collection}/documents/{document_id}", "404"] == 1
    assert counted["none", "404"] == 1
    assert counted["/healthz", "200"] == 1
    assert "secret" not in str(counted)


async def test_retriever_metrics(served):
    assert await values(served, "ragtree_ingest_documents_total") == {("stored",): 5, ("unchanged",): 2, ("failed",): 1}
    assert await value(served, "ragtree_ingest_queue_depth") == 3
    assert await value(served, "ragtree_data_disk_bytes") == 1000
    assert await value(served, "ragtree_data_disk_free_bytes") == 400
    assert await value(served, "ragtree_graph_unread_chunks") == 6
    assert await value(served, "ragtree_graph_unreadable_chunks") == 2


async def test_without_graphs_no_chunk_counts_as_unread_or_unreadable(served):
    served.stack.retriever.unread = served.stack.retriever.unreadable = None
    found = await families(served)
    assert "ragtree_ingest_queue_depth" in found
    assert not {"ragtree_graph_unread_chunks", "ragtree_graph_unreadable_chunks"} & found.keys()


async def test_tier_metrics_in_bytes(stack: Stack, in_process):
    stack.generator.kv = KvMemory("f", "b", 16, 1600, 9, 0, 0, 1.0, 1.0)
    async with in_process() as served:
        assert await values(served, "ragtree_cache_capacity_bytes") == {("gpu",): 100_000}


@pytest.mark.parametrize(
    ("phase", "gone"),
    [
        ("stats", "ragtree_queue_depth"),
        ("retriever_stats", "ragtree_ingest_documents"),
        ("engine_metrics", "vllm:num_requests_running"),
    ],
)
@pytest.mark.parametrize("how", ["fails", "is silent"])
async def test_missing_part_leaves_other_metrics_intact(in_process, stack: Stack, phase: str, gone: str, how: str):
    stack.generator.counted = {"one": engine_text(1)}
    parts = {"ragtree_queue_depth", "ragtree_ingest_documents", "vllm:num_requests_running"}
    async with in_process(readiness_timeout_s=0.3) as served:
        await all_there(served, parts)
        if how == "fails":
            stack.phases.failing[phase] = Unavailable("away")
        else:
            stack.phases.held.add(phase)
        found = set(await families(served))
        assert parts - found == {gone}
        assert "ragtree_queries" in found
        stack.phases.failing.clear()
        stack.phases.held.clear()
        await all_there(served, parts)


async def all_there(served, names: set[str]) -> None:
    while not names <= set(await families(served)):
        await asyncio.sleep(0.01)


async def test_part_ready_metric(served):
    served.stack.phases.failing["engine_ready"] = EngineDied("gone")
    await served.client.get("/readyz")
    assert await values(served, "ragtree_part_ready") == {("controller",): 1, ("engine",): 0, ("retriever",): 1}


async def test_version_metric(served):
    ((version,),) = await values(served, "ragtree_build_info")
    assert version == served.app.version


def engine_text(running: int) -> str:
    """An engine's metrics, with each type that vLLM uses."""
    registry = CollectorRegistry()
    Gauge("vllm:num_requests_running", "Running.", ["model_name"], registry=registry).labels("m").set(running)
    Counter("vllm:prompt_tokens", "Prompt.", ["model_name"], registry=registry).labels("m").inc(10 * running)
    Histogram("vllm:iteration_tokens_total", "Odd name.", ["model_name"], registry=registry).labels("m").observe(3)
    return generate_latest(registry).decode()


async def test_engine_metrics_are_labelled_by_instance(served):
    served.stack.generator.counted = {"one": engine_text(1), "two": engine_text(2)}
    found = await families(served)
    assert await values(served, "vllm:num_requests_running") == {("one", "m"): 1, ("two", "m"): 2}
    assert await values(served, "vllm:prompt_tokens_total") == {("one", "m"): 10, ("two", "m"): 20}
    assert await values(served, "vllm:iteration_tokens_total_count") == {("one", "m"): 1, ("two", "m"): 1}
    kinds = {name: family.type for name, family in found.items() if name.startswith("vllm:")}
    assert kinds == {
        "vllm:num_requests_running": "gauge",
        "vllm:prompt_tokens": "counter",
        "vllm:iteration_tokens_total": "histogram",
    }
    assert all("generator" in sample.labels for name in kinds for sample in found[name].samples)


async def test_malformed_engine_metrics_leave_the_rest_intact(served):
    served.stack.generator.counted = {"one": 'vllm:broken{x="'}
    assert await value(served, "ragtree_queue_depth") == 0
