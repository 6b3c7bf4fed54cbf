"""The worst accepted body of each route holds the gateway's loop for no longer than 5 ms."""

import asyncio
import gc
import json
import re
import threading
import time
from collections.abc import Callable
from functools import partial

import httpx
import msgspec
import pytest
from gateway_fakes import EMBEDDER, MODEL, chunk
from loop_watchdog import MOST_S, LoopWatchdog
from model_folders import make_model_folder
from prometheus_client import CollectorRegistry, Histogram, generate_latest

from gateway.routes.bodies import MOST, JsonSize, json_size
from gateway.tasks import SHORT, off_loop
from generator.prompts.layout import SegmentLayout
from generator.prompts.tokenizer import ModelTokenizer
from protocol.errors import QuestionTooLong
from protocol.prompts import ChatMessage
from protocol.retrieval import Embeddings

KIB = 1024
JSON = {"Content-Type": "application/json"}
LINES = {"Content-Type": "application/x-ndjson"}
DOCUMENT = "/v1/collections/default/documents/d"
TURN = b'{"role":"user","content":"a"}'
CHAT = b'{"model":"%b","messages":[' % MODEL.encode()
RESPONSE = b'{"model":"%b","input":' % MODEL.encode()
COMPLETION = b'{"model":"%b","prompt":' % MODEL.encode()
EMBEDDING = b'{"model":"%b","input":' % EMBEDDER.encode()
FILTERS = b'{"query":"a","filters":{"type":"and","filters":['
LEAF = b'{"type":"eq","key":"lang","value":"en"}'
MEMBER = b'{"type":"in","key":"lang","value":['
ANY = b'{"type":"or","filters":[%b]}' % b",".join([LEAF] * 100)


def many(head: bytes, item: bytes, tail: bytes, count: int) -> bytes:
    return head + b",".join([item] * count) + tail


def names(head: bytes, count: int, tail: bytes = b"}", value: bytes = b"1") -> bytes:
    return head + b",".join(b'"%d":%b' % (number, value) for number in range(count)) + tail


ACCEPTED = {
    "messages": ("/v1/chat/completions", many(CHAT, TURN, b"]}", 830), 200),
    "parts": ("/v1/chat/completions", many(CHAT + TURN[:-4] + b"[", b'{"type":"text","text":"a"}', b"]}]}", 620), 200),
    "a long message": ("/v1/chat/completions", CHAT + TURN[:-3] + b"a, [{ " * 5400 + b'"}]}', 200),
    "escapes": ("/v1/chat/completions", CHAT + TURN[:-3] + b'\\"\\u00e4' * 16_000 + b'"}]}', 200),
    "biases": ("/v1/chat/completions", names(CHAT + TURN + b'],"logit_bias":{', 1024, b"}}"), 200),
    "items": ("/v1/responses", many(RESPONSE + b"[", TURN, b"]}", 830), 200),
    "filters": ("/v1/query", many(FILTERS, ANY, b"]}}", 6), 200),
    "terms": ("/v1/search", many(FILTERS, many(MEMBER, b'"en"', b"]}", 1000), b"]}}", 10), 200),
    "texts": ("/v1/embeddings", many(EMBEDDING + b"[", b'"%b"' % (b"a " * 60), b"]}", 2048), 200),
}
"""The most of each kind that a body may have."""

REFUSED = {
    "messages": ("/v1/chat/completions", many(CHAT, TURN, b"]}", 7501), 400),
    "invalid messages": ("/v1/chat/completions", many(CHAT, b"1", b"]}", 2400), 422),
    "empty messages": ("/v1/chat/completions", many(CHAT, b"{}", b"]}", 80_000), 400),
    "stop strings": ("/v1/chat/completions", many(CHAT + TURN + b'],"stop":[', b'"a"', b"]}", 2400), 422),
    "biases": ("/v1/chat/completions", names(CHAT + TURN + b'],"logit_bias":{', 1900, b"}}", b'"x"'), 422),
    "metadata": ("/v1/responses", names(RESPONSE + b'"a","metadata":{', 1900, b"}}"), 422),
    "token ids": ("/v1/completions", many(COMPLETION + b"[", b"[1.5]", b"]}", 1200), 422),
    "fields": ("/v1/query", names(b'{"query":"a",', 2400), 400),
    "fields of a filter": ("/v1/query", names(FILTERS + LEAF[:-1] + b",", 1900, b"}]}}"), 422),
    "nested filters": ("/v1/query", FILTERS * 5000 + b"]}}" * 5000, 400),
    "terms": ("/v1/query", many(FILTERS, many(MEMBER, b"[]", b"]}", 1000), b"]}}", 60), 400),
    "arrays": ("/v1/query", b'{"query":"a","x":' + b"[" * 120_000 + b"]" * 120_000 + b"}", 400),
    "names and texts": ("/v1/query", names(b'{"query":"a",', 20_000, value=b'""'), 400),
}


@pytest.fixture
def loop_watchdog():
    """Stricter than in other tests: this gateway has served before, so nothing of what it does is done once."""
    watchdog = LoopWatchdog()
    yield watchdog
    assert not watchdog.held, "\n".join(map(str, watchdog.held))


@pytest.fixture
async def gateway(stack, in_process, loop_watchdog, monkeypatch):
    """Requests that held the loop are sent again, twice at most: a busy machine makes a callback slow now and then."""
    stack.layout.context = 1_000_000
    async with in_process() as served:
        await asyncio.gather(
            *(served.client.post(path, content=b"{}", headers=JSON) for path, _, _ in ACCEPTED.values())
        )
        request = served.client.request

        async def requested(*arguments: object, **options: object) -> httpx.Response:
            held = len(loop_watchdog.held)
            for _ in range(3):
                del loop_watchdog.held[held:]
                replied = await request(*arguments, **options)
                if len(loop_watchdog.held) == held:
                    break
            return replied

        monkeypatch.setattr(served.client, "request", requested)
        with loop_watchdog.watching():
            yield served


@pytest.mark.parametrize(("path", "body", "status"), ACCEPTED.values(), ids=ACCEPTED)
async def test_the_largest_bodies_are_answered(gateway, path, body, status):
    assert json_size(body).within(MOST)
    replied = await gateway.client.post(path, content=body, headers=JSON)
    assert replied.status_code == status, replied.text


@pytest.mark.parametrize(("path", "body", "status"), REFUSED.values(), ids=REFUSED)
async def test_what_would_take_longer_is_refused_with_its_limit(gateway, path, body, status):
    replied = await gateway.client.post(path, content=body, headers=JSON)
    error = replied.json()["error"]
    assert replied.status_code == status, replied.text
    assert len(replied.content) < KIB
    assert error["code"] == ("too_many_values" if status == 400 else "invalid_value")
    if status == 400:
        assert re.search("more than (12,500 JSON values, or 2,000 names of fields|100 fields)", error["message"])


@pytest.mark.parametrize("encoding", ["float", "base64"])
async def test_many_long_vectors_are_encoded_elsewhere(gateway, stack, monkeypatch, encoding):
    vectors = Embeddings((b"\0\0\x80\x3f" * 384,) * 2048, 1)

    async def embed(_request: object) -> Embeddings:
        return vectors

    monkeypatch.setattr(stack.retriever, "embed", embed)
    body = {"model": EMBEDDER, "input": "a", "encoding_format": encoding}
    replied = await gateway.client.post("/v1/embeddings", json=body)
    assert len(replied.json()["data"]) == 2048


@pytest.mark.parametrize("values", [0, 1, MOST.values - 1, MOST.values, MOST.values + 1])
@pytest.mark.parametrize("value", ['","', '\\"],[', "\\\\", '{"a":', "plain"])
def test_marks_in_texts_are_no_values(value, values):
    assert json_size(json.dumps([value] * values).encode()).within(MOST) is (values + 1 <= MOST.values)


@pytest.mark.parametrize("count", [1, MOST.names - 1, MOST.names, MOST.names + 1])
@pytest.mark.parametrize("value", [1, "a:b", '\\": "'])
def test_marks_in_texts_are_no_names(value, count):
    body = json.dumps({f"{number}:": value for number in range(count)}).encode()
    assert json_size(body).within(MOST) is (count <= MOST.names)
    if count > MOST.names:
        assert json_size(body) == JsonSize(count + 1, count)


async def test_documents_as_json_are_read_elsewhere(gateway):
    text = "\u00e4 b\n" * (256 * KIB)
    replied = await gateway.client.put(DOCUMENT, content=json.dumps({"text": text}).encode(), headers=JSON)
    assert replied.status_code == 202
    body = names(b'{"text":"a","attributes":{', 100_000, b"}}")
    assert (await gateway.client.put(DOCUMENT, content=body, headers=JSON)).status_code == 400


def seconds(work: Callable[[], object]) -> float:
    """The processor time of this work."""
    began = time.process_time()
    work()
    return time.process_time() - began


@pytest.mark.parametrize(
    ("build", "status"),
    [
        (partial(names, b'{"text":"a","attributes":{', 20_000, b"}}"), 422),
        (partial(names, b'{"text":"a","attributes":{', 1_000_000, b"}}"), 400),
        (partial(many, b'{"text":"a","triplets":[', b"1", b"]}", 40_000), 422),
        (partial(many, b'{"text":"a","triplets":[', b"{}", b"]}", 4_000_000), 400),
        (partial(many, b'{"text":"a","title":[', b"1", b"]}", 4_000_000), 400),
        (partial(many, b'{"text":"a","what":[', b"1", b"]}", 4_000_000), 422),
        (partial(many, b'{"text":[', b"1", b"]}", 4_000_000), 422),
    ],
    ids=["attributes", "many attributes", "triplets", "many triplets", "title", "unknown", "text"],
)
async def test_documents_of_tiny_values_are_refused_at_once(served, build, status):
    body = build()
    parsed_s = seconds(lambda: json.loads(body))
    begun = time.process_time()
    replied = await served.client.put(DOCUMENT, content=body, headers=JSON)
    assert replied.status_code == status, replied.text
    # Python's lock is held while they are parsed. Validated as a whole, the largest would take four times as long.
    assert time.process_time() - begun < max(0.3, parsed_s)


async def test_logs_of_queries_are_read_elsewhere_and_bounded(served):
    # After half a second in another thread, the processor's caches are cold, and a callback takes four times as long.
    with LoopWatchdog(4 * MOST_S).watching() as watchdog:
        lines = await served.client.post("/v1/admin/cache/warm", content=b'"a"\n' * 20_000, headers=LINES)
        assert lines.status_code == 202, lines.text
        more = await served.client.post("/v1/admin/cache/warm", content=b"\n" * 300_000, headers=LINES)
        assert (more.status_code, more.json()["error"]["code"]) == (413, "payload_too_large")
        body = many(b'{"queries":[', b'"a"', b"]}", 100_000)
        values = await served.client.post("/v1/admin/cache/warm", content=body, headers=JSON)
        assert (values.status_code, values.json()["error"]["code"]) == (400, "too_many_values")
    assert not watchdog.held, "\n".join(map(str, watchdog.held))


async def test_the_description_of_the_api_is_made_elsewhere(gateway):
    for _ in range(2):
        described = await gateway.client.get("/openapi.json")
        assert described.json()["paths"]["/v1/query"]["post"]


async def test_metrics_of_many_engines_are_rendered_elsewhere(gateway):
    registry = CollectorRegistry()
    for number in range(50):
        Histogram(f"vllm:measured_{number}", "Measured.", ["model_name"], registry=registry).labels("m").observe(1)
    text = generate_latest(registry).decode()
    gateway.stack.generator.counted = {f"engine-{number}": text for number in range(8)}
    rendered = await gateway.client.get("/metrics")
    assert rendered.text.count("vllm:measured_49_sum{") == 8


def passages(count: int, words: int):
    text = " ".join(f"word{number}" for number in range(words))
    return tuple(msgspec.structs.replace(chunk(rank), text=text) for rank in range(count))


@pytest.mark.parametrize(
    "answer", ["word1 word2 word3. " * 3000, "word1 word2 " * 6000, "the\n" * 10_000], ids=["short", "one", "joined"]
)
async def test_long_answers_are_cited_elsewhere(gateway, stack, answer, monkeypatch):
    monkeypatch.setattr("gateway_fakes.chunk", lambda rank: passages(rank + 1, 400)[rank])
    stack.generator.words = (answer,)
    replied = await gateway.client.post("/query", json={"query": "word1?", "top_k": 100})
    assert replied.json()["output_text"] == answer
    assert all(len(cited["spans"]) <= 100 for cited in replied.json()["cited"])


@pytest.fixture(scope="module")
def layout(tmp_path_factory) -> SegmentLayout:
    return SegmentLayout(ModelTokenizer(make_model_folder(tmp_path_factory.mktemp("model"))), "Answer.", 200_000)


@pytest.mark.parametrize("shape", ["long", "many"])
async def test_long_prompts_are_laid_out_elsewhere(gateway, stack, layout, shape):
    stack.layout.lay_out = layout.lay_out
    turns = [b'{"role":"user","content":"%b"}' % (b"a " * 16_000)] if shape == "long" else [TURN] * 800
    replied = await gateway.client.post("/v1/chat/completions", content=CHAT + b",".join(turns) + b"]}", headers=JSON)
    assert replied.status_code == 200


def test_a_conversation_is_rendered_in_time_that_grows_with_its_length(layout):
    def rendered_s(turns: int) -> float:
        return min(seconds(lambda: layout.lay_out([ChatMessage("user", "a")] * turns, (), 1)) for _ in range(3))

    # By the former search for each mark, 60 times as much.
    assert rendered_s(8000) < 24 * rendered_s(1000)


def test_a_conversation_of_more_messages_than_the_context_has_tokens_is_refused_before_it_is_rendered(layout):
    with pytest.raises(QuestionTooLong, match="200001 messages"):
        layout.lay_out([ChatMessage("user", "a")] * 200_001, (), 1)


def compute(seconds: float) -> None:
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


async def test_short_work_stays_on_the_loop_and_long_work_raises_as_it_would_there():
    loop_thread = await off_loop(SHORT, lambda: asyncio.get_running_loop() is not None)
    assert loop_thread
    with pytest.raises(RuntimeError, match="no running event loop"):
        await off_loop(SHORT + 1, asyncio.get_running_loop)


async def test_the_watchdog_names_the_function_that_holds_the_loop(stack, in_process):
    def slow(*_arguments: object) -> None:
        until = time.thread_time() + 0.2
        while time.thread_time() < until:
            pass

    stack.layout.context_text = lambda documents, paths: slow() or "context"
    watchdog = LoopWatchdog(0.05)
    async with in_process() as served:
        with watchdog.watching():
            replied = await served.client.post("/query", json={"query": "a", "only_need_context": True})
    assert replied.status_code == 200
    held = watchdog.held.pop()
    assert held.seconds > 0.2
    assert held.stack[-1].name == "slow"
    assert "gateway/query/transcript.py" in str(held)


async def test_the_watchdog_lets_tests_and_waits_alone():
    watchdog = LoopWatchdog()
    with watchdog.watching():
        await asyncio.sleep(0)
        compute(0.02)
        await asyncio.sleep(0.02)
    assert not watchdog.held


async def test_the_watchdog_lets_a_collection_in_another_thread_alone(stack, in_process):
    collecting, replied = threading.Event(), threading.Event()

    def collect() -> None:
        compute(0.2)
        gc.collect()

    def stay(phase: str, _info: dict[str, int]) -> None:
        if phase == "start" and threading.current_thread() is collector:
            collecting.set()
            replied.wait()

    def begin(*_arguments: object) -> None:
        collector.start()
        collecting.wait()
        compute(0.03)

    collector = threading.Thread(target=collect, daemon=True)
    stack.layout.context_text = lambda documents, paths: begin() or "context"
    watchdog = LoopWatchdog(0.05)
    async with in_process() as served:
        with watchdog.watching():
            gc.callbacks.append(stay)
            try:
                await served.client.post("/query", json={"query": "a", "only_need_context": True})
            finally:
                gc.callbacks.remove(stay)
                replied.set()
            collector.join()
    assert not watchdog.held
