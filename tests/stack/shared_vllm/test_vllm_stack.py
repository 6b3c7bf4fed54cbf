"""End to end, over HTTP only: real vLLM through real Ray Serve."""

import os
import re
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import msgspec
import openai
import psutil
import pytest
from stacks import come_to, comparable, until

pytestmark = [pytest.mark.ray, pytest.mark.vllm]

QUESTION = {
    "query": "What is the capital of Freedonia?",
    "collection": "countries",
    "top_k": 1,
    "max_tokens": 16,
    "temperature": 0,
}


@pytest.fixture(scope="module")
def client(vllm_stack):
    with openai.OpenAI(base_url=f"{vllm_stack.url}/v1", api_key="none", timeout=120) as client:
        yield client


def test_answer_uses_its_documents(vllm_stack):
    reply = vllm_stack.query(**QUESTION).json()
    assert "Marxville" in reply["output_text"]
    assert reply["citations"][0]["document_id"] == "freedonia"
    assert reply["usage"]["total_tokens"] == reply["usage"]["prompt_tokens"] + reply["usage"]["completion_tokens"]
    assert 0 < reply["timings"]["prefill_ms"] <= reply["timings"]["ttft_ms"] <= reply["timings"]["total_ms"]


def test_json_and_server_sent_events_give_the_same_object(vllm_stack):
    as_json = vllm_stack.query(**QUESTION).json()
    as_events = vllm_stack.events(**QUESTION)[-1]["response"]
    assert comparable(as_json) == comparable(as_events)


def test_an_answer_that_began_during_the_search_is_the_same(vllm_stack):
    events = vllm_stack.events(**QUESTION, include=["stages"])
    stages = [event for event in events if event["type"] == "retrieval.stage"]
    # What is found by words comes first.
    assert [stage["final"] for stage in stages] == [False] * (len(stages) - 1) + [True]
    assert len(stages) > 1
    assert {tuple(stage["doc_ids"]) for stage in stages} == {("freedonia",)}
    reply = events[-1]["response"]
    assert reply["timings"]["speculation"]["outcome"] == "confirmed"
    assert reply["timings"]["speculation"]["generations"] == 1
    assert len(reply["timings"]["stages_ms"]) == len(stages)
    types = [event["type"] for event in events]
    assert types.index("retrieval.completed") < types.index("cache.resolved") < types.index("output_text.delta")
    assert "Marxville" in reply["output_text"]
    with vllm_stack.client() as client:
        assert 'ragtree_speculation_total{outcome="confirmed"}' in client.get("/metrics").text


def test_dashboards_use_metrics_that_vllm_exposes(vllm_stack):
    vllm_stack.query(**QUESTION)
    with vllm_stack.client() as client:
        text = client.get("/metrics").text
    exposed = set(re.findall(r"^(vllm:\w+)\{[^}]*generator=\"[^\"]+\"", text, re.MULTILINE))
    boards = (Path(__file__).parents[3] / "helm/ragtree/dashboards").glob("*.json")
    asked = {name for board in boards for name in re.findall(r"vllm:\w+", board.read_text(encoding="utf-8"))}
    assert asked
    assert asked <= exposed
    described = re.findall(r"^# TYPE (\S+)", text, re.MULTILINE)
    assert len(set(described)) == len(described)
    (generated,) = re.findall(r"^vllm:generation_tokens_total\{.*\} (\S+)$", text, re.MULTILINE)
    assert float(generated) > 0
    # The alerts use these metrics.
    assert set(re.findall(r'^ragtree_cache_capacity_bytes\{tier="(\w+)"\}', text, re.MULTILINE)) >= {
        "gpu",
        "host",
        "disk",
    }


ARCHIVE = "The archive of Ruritania holds letters, maps, ledgers and diaries from four centuries. " * 20


def asked_of_archive(stack, question: str) -> dict:
    return stack.query(**{**QUESTION, "query": question, "collection": "archive", "max_tokens": 2}).json()["usage"]


def cached(usage: dict) -> int:
    return usage["prompt_tokens_details"]["cached_tokens"]


def test_document_is_prefilled_once(vllm_stack):
    vllm_stack.ingest("archive", {"ruritania": ARCHIVE})
    first = asked_of_archive(vllm_stack, "What does the archive of Ruritania hold?")
    events = vllm_stack.events(**{**QUESTION, "query": "From how many centuries?", "collection": "archive"})
    (resolved,) = [event for event in events if event["type"] == "cache.resolved"]
    # Everything but the question is cached, including the last partial block.
    assert resolved["cached_tokens"] > first["prompt_tokens"] - 60 > cached(first)
    assert resolved["tiers"] == {"gpu": resolved["cached_tokens"]}
    assert resolved["hit_docs"] == 1
    usage = events[-1]["response"]["usage"]
    assert cached(usage) == resolved["cached_tokens"]


def test_documents_of_a_queued_query_are_prefetched(vllm_stack):
    vllm_stack.ingest("museum", {"museum": ARCHIVE.replace("archive", "museum")})
    long = {**QUESTION, "query": "Write a long story about Freedonia.", "max_tokens": 250}
    prepared = vllm_stack.metric("ragtree_cache_prepared_tokens_total")
    with ThreadPoolExecutor(1) as pool:
        with vllm_stack.asking(**long) as one, vllm_stack.asking(**long) as other:
            for answer in (one, other):
                next(event for event in answer if event["type"] == "output_text.delta")
            asked = {**QUESTION, "query": "What does the museum hold?", "collection": "museum", "max_tokens": 2}
            waits = pool.submit(vllm_stack.query, **asked)
            until(lambda: vllm_stack.metric("ragtree_cache_prepared_tokens_total") > prepared)
            assert not waits.done()
        reply = waits.result().json()
    assert reply["timings"]["queue_ms"] > 100
    assert cached(reply["usage"]) > reply["usage"]["prompt_tokens"] - 60


def test_killed_controller_restores_its_tree(vllm_stack, shared_redis):
    vllm_stack.ingest("archive", {"ruritania": ARCHIVE})
    asked_of_archive(vllm_stack, "What does the archive of Ruritania hold?")
    before = asked_of_archive(vllm_stack, "What else is there?")
    assert cached(before) > 300
    uses = uses_of_nodes(vllm_stack)
    assert max(uses.values()) > 1
    until(lambda: kept_uses(shared_redis).items() >= uses.items())
    (controller,) = vllm_stack.processes("ServeReplica:controller")
    controller.kill()
    psutil.wait_procs([controller], timeout=10)
    until(lambda: vllm_stack.processes("ServeReplica:controller") and vllm_stack.is_ready())
    with vllm_stack.client() as client:
        stats = client.get("/v1/admin/cache/stats").raise_for_status().json()
    assert sum(tier["nodes"] for tier in stats["tiers"]) > 0
    again = uses_of_nodes(vllm_stack)
    assert again
    assert again.items() <= uses.items(), "what the former controller had counted"
    assert cached(asked_of_archive(vllm_stack, "And what besides?")) == cached(before)


def uses_of_nodes(stack) -> dict[str, float]:
    """Return how often each node of the tree was used, by key."""
    with stack.client() as client:
        tree = client.get("/v1/admin/cache/tree", params={"depth": 10}).raise_for_status().json()
    nodes = [node for top in tree["namespaces"].values() for node in top]
    for node in nodes:
        nodes += node["children"]
    return {node["key"]: node["frequency"] for node in nodes}


def kept_uses(redis) -> dict[str, float]:
    with redis.client() as client:
        nodes = client.hgetall("ragtree:kv:nodes")
    return {key.decode(): msgspec.msgpack.decode(node)["accesses"] for key, node in nodes.items()}


def test_deleted_document_leaves_nothing_in_the_cache(vllm_stack):
    assert cached(asked_of_archive(vllm_stack, "Is it still here?")) > 300
    with vllm_stack.client() as client:
        client.delete("/v1/collections/archive/documents/ruritania").raise_for_status()
        tree = client.get("/v1/admin/cache/tree?depth=9").raise_for_status().text
    vllm_stack.ingest("archive", {"ruritania": ARCHIVE})
    assert cached(asked_of_archive(vllm_stack, "Is it here again?")) < 180
    with vllm_stack.client() as client:
        assert len(client.get("/v1/admin/cache/tree?depth=9").raise_for_status().text) > len(tree)


def test_documents_that_do_not_fit_are_dropped_from_the_end(vllm_stack):
    word = "Ruritania has many castles and lakes and valleys and forests. "
    vllm_stack.ingest("long", {f"part{n}": f"Part {n}. " + word * 38 for n in range(6)})
    asked = {**QUESTION, "query": "What has Ruritania?", "collection": "long", "top_k": 6, "max_tokens": 4}
    reply = vllm_stack.query(**asked).json()
    assert reply["dropped_documents"] > 0
    assert len(reply["citations"]) + reply["dropped_documents"] == len(reply["results"])
    kept = [citation["chunk_id"] for citation in reply["citations"]]
    assert kept == [result["chunk_id"] for result in reply["results"]][: len(kept)]
    assert reply["usage"]["prompt_tokens"] + 4 <= 2048


def test_a_question_that_alone_is_too_long_is_refused(vllm_stack):
    refused = vllm_stack.query(**{**QUESTION, "query": "why oh why " * 1500})
    assert refused.status_code == 400
    assert refused.json()["error"]["code"] == "question_too_long"


def test_the_openai_client_works_unchanged(client):
    (model,) = client.models.list().data
    messages = [{"role": "user", "content": QUESTION["query"]}]
    options = {"model": model.id, "messages": messages, "max_tokens": 16, "temperature": 0}
    whole = client.chat.completions.create(**options, extra_body={"collection": "countries", "top_k": 1})
    assert "Marxville" in whole.choices[0].message.content
    chunks = list(
        client.chat.completions.create(
            **options,
            stream=True,
            stream_options={"include_usage": True},
            extra_body={"collection": "countries", "top_k": 1},
        )
    )
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].usage.total_tokens == whole.usage.total_tokens
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="another", messages=messages)


@pytest.mark.prove("gateway/query/", "gateway/routes/", "generator/engines/", "services/serve/")
def test_a_client_that_leaves_stops_the_engine(vllm_stack):
    """After a disconnect in mid-answer, the engine must stop working: its count of tokens and its CPU time show it."""
    asked = {**QUESTION, "query": "Write a long story about Freedonia.", "max_tokens": 250}
    (engine,) = vllm_stack.engines()

    def rests() -> bool:
        # On a busy machine, the engine may get so little CPU time while it works.
        waiting, running = (vllm_stack.metric_of_all(f"vllm:num_requests_{state}") for state in ("waiting", "running"))
        return waiting + running == 0 and engine.cpu_percent(interval=0.5) < 20

    def used_s() -> float:
        times = engine.cpu_times()
        return times.user + times.system

    def generated() -> float:
        return vllm_stack.metric_of_all("vllm:generation_tokens_total")

    # What was ingested before may still be prefilled.
    until(rests)
    before_s, before = used_s(), generated()
    whole = vllm_stack.query(**asked).json()
    whole_s = used_s() - before_s
    # Decoding is greedy, so the same question gives the same length: the answer would not have ended by itself.
    assert whole["finish_reason"] == "length"
    assert generated() - before >= asked["max_tokens"]
    until(rests)
    before_s, before = used_s(), generated()
    with vllm_stack.asking(**asked) as events:
        for _ in range(3):
            come_to(events, "output_text.delta")
        # On a busy machine, half a second may be too short to see it.
        until(lambda: engine.cpu_percent(interval=0.5) > 40)
    left_s, left = used_s(), generated()
    rest_s, rest = whole_s - (left_s - before_s), asked["max_tokens"] - (left - before)
    # It was far from the end.
    assert rest > asked["max_tokens"] / 2
    assert rest_s > whole_s / 2
    until(rests)
    # First what says whether it went on decoding: CPU time may also be that of other work.
    assert generated() - left < rest / 3
    assert used_s() - left_s < rest_s / 3


def test_only_ingestion_gives_way(vllm_stack):
    stack = psutil.Process(vllm_stack.running.pid)
    titles = ["ServeReplica:retriever", "ServeReplica:controller", "ServeReplica:generator"]
    # A process that was started again gets its title with its first call.
    replicas = [until(partial(vllm_stack.processes, title))[0] for title in titles]
    (engine,) = until(vllm_stack.engines)
    assert {process.nice() for process in (*replicas, engine)} == {stack.nice()}
    threads = {os.getpriority(os.PRIO_PROCESS, thread.id) for thread in replicas[0].threads()}
    assert min(threads) == stack.nice() < max(threads)
