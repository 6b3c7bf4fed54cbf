"""Quotas of keys and limits of the whole gateway."""

import asyncio

import httpx
import pytest
from gateway_fakes import ANSWER, eventually
from gateway_requests import values

from gateway.limits.auth import Keyring
from gateway.settings import ApiKey, GatewaySettings, Limits
from protocol.errors import RateLimited

PUT = "/v1/collections/default/documents/d1"
BATCH = "/v1/collections/default/documents:batch"
TEXT = {"Content-Type": "text/plain"}
LINES = {"Content-Type": "application/x-ndjson"}


def limited(answer: httpx.Response, status: int = 429) -> int:
    """Check a refusal, and return its Retry-After in seconds."""
    assert answer.status_code == status, answer.text
    assert answer.json()["error"]["type"] == ("rate_limit_error" if status == 429 else "overloaded_error")
    return int(answer.headers["retry-after"])


async def test_without_limits_nothing_is_counted_and_no_header_is_sent(served):
    answer = await served.client.post("/query", json={"query": "x"})
    assert answer.status_code == 200
    assert not [name for name in answer.headers if name.startswith("x-ratelimit")]
    assert served.app.state.gateway.stores.windows._storage.storage == {}


async def test_requests_over_quota_are_refused(in_process):
    async with in_process(limits={"requests_per_minute": 3}) as served:
        said = [await served.client.get("/v1/collections") for _ in range(3)]
        assert [answer.headers["x-ratelimit-remaining-requests"] for answer in said] == ["2", "1", "0"]
        assert {answer.headers["x-ratelimit-limit-requests"] for answer in said} == {"3"}
        refused = await served.client.post("/query", json={"query": "x"})
        # At most two windows: the current minute and the next, in which the count expires.
        assert 1 <= limited(refused) <= 120
        assert refused.headers["x-ratelimit-remaining-requests"] == "0"
        assert float(refused.headers["x-ratelimit-reset-requests"].removesuffix("s")) <= 120
        assert served.stack.retriever.requests == [], "refused before any work"
        rejected = await values(served, "ragtree_requests_rejected_total")
        assert rejected[("rate_limited",)] == 1
        assert (await served.client.get("/readyz")).status_code == 200
        assert (await served.client.get("/v1/admin/cache/stats")).status_code == 200, "administrators are not limited"


async def test_each_key_has_its_own_quotas(in_process):
    keys = [
        {"secret": "one", "tenant": "default"},
        {"secret": "two", "tenant": "default", "limits": {"requests_per_minute": 2}},
        {"secret": "free", "tenant": "default", "limits": {"requests_per_minute": None}},
    ]
    async with in_process(api_keys=keys, limits={"requests_per_minute": 1}) as served:

        async def statuses(key: str) -> list[int]:
            headers = {"Authorization": f"Bearer {key}"}
            return [(await served.client.get("/v1/collections", headers=headers)).status_code for _ in range(4)]

        assert await statuses("one") == [200, 429, 429, 429]
        assert await statuses("two") == [200, 200, 429, 429]
        assert await statuses("free") == [200] * 4
        assert await statuses("wrong") == [401] * 4
        counted = " ".join(served.app.state.gateway.stores.windows._storage.storage)
        assert not any(clear in counted for clear in ("default", "one", "two"))


def test_key_limits_override_common_limits():
    key = ApiKey(secret="k", tenant="t", limits=Limits(tokens_per_minute=None, concurrent_queries=2))
    common = Limits(tokens_per_minute=5, requests_per_minute=7)
    caller = Keyring(GatewaySettings(api_keys=(key,), limits=common)).caller({"authorization": "Bearer k"})
    assert caller.limits == Limits(requests_per_minute=7, concurrent_queries=2)


async def used_by(served, answer: httpx.Response) -> int:
    """Tokens of a query. Returns when they are charged, which happens after the reply."""
    await eventually(lambda: not served.running and not len(served.app.state.gateway.quotas._tasks))
    return answer.json()["usage"]["total_tokens"]


async def test_query_is_charged_its_tokens(in_process):
    async with in_process(limits={"tokens_per_minute": 100}) as served:
        first = await served.client.post("/query", json={"query": "x"})
        assert first.headers["x-ratelimit-remaining-tokens"] == "100"
        left = 100 - await used_by(served, first)
        second = await served.client.post("/query", json={"query": "x", "max_tokens": 2})
        assert int(second.headers["x-ratelimit-remaining-tokens"]) == left
        left -= await used_by(served, second)
        third = await served.client.post(
            "/v1/chat/completions", json={"model": "fake-model", "messages": [{"role": "user", "content": "x"}]}
        )
        assert int(third.headers["x-ratelimit-remaining-tokens"]) == left


async def test_query_over_token_quota_is_refused_before_any_work(in_process):
    async with in_process(limits={"tokens_per_minute": 5}) as served:
        first = await served.client.post("/query", json={"query": "x"})
        assert first.status_code == 200, "within the quota"
        assert await used_by(served, first) > 5
        refused = await served.client.post("/query", json={"query": "x"})
        assert 1 <= limited(refused) <= 120
        assert "tokens per minute" in refused.json()["error"]["message"]
        assert len(served.stack.retriever.requests) == 1
        assert (await served.client.get("/v1/collections")).status_code == 200, "this request uses no tokens"


async def test_burst_is_not_admitted_on_the_same_tokens(in_process):
    async with in_process(limits={"tokens_per_minute": 1000}) as served:
        served.stack.phases.held.add("prefill")
        asking = [asyncio.create_task(served.client.post("/query", json={"query": "x"})) for _ in range(10)]
        await eventually(lambda: sum(task.done() for task in asking) == 6)
        assert {limited(task.result()) for task in asking if task.done()} == {2}
        served.stack.phases.held.clear()
        served.stack.phases.released["prefill"].set()
        answers = await asyncio.gather(*asking)
        assert sorted(answer.status_code for answer in answers) == [200] * 4 + [429] * 6
        await used_by(served, next(answer for answer in answers if answer.status_code == 200))
        # Their real use is known now and small.
        again = await asyncio.gather(*(served.client.post("/query", json={"query": "x"}) for _ in range(10)))
        assert {answer.status_code for answer in again} == {200}


async def test_cancelled_query_is_charged_its_tokens(over_http):
    async with over_http(limits={"tokens_per_minute": 1000}) as live:
        live.stack.phases.held.add("decode")
        asking = asyncio.create_task(live.client.post("/query", json={"query": "x"}))
        await live.stack.phases.reached["decode"].wait()
        asking.cancel()
        await asyncio.wait({asking})
        await eventually(lambda: live.running == 0)
        window = live.app.state.gateway.stores.windows._storage.storage
        await eventually(lambda: sum(window.values()) > len(ANSWER))


async def test_later_refusal_releases_the_reservation(in_process):
    async with in_process(limits={"tokens_per_minute": 100}) as served:
        for _ in range(5):
            assert (await served.client.post("/query", json={"query": "x", "nonsense": 1})).status_code == 422
        assert (await served.client.post("/query", json={"query": "x"})).status_code == 200


@pytest.mark.parametrize("stream", [False, True])
async def test_concurrent_queries_of_a_key_are_limited(in_process, stream: bool):
    async with in_process(limits={"concurrent_queries": 2}) as served:
        served.stack.phases.held.add("prefill")
        asking = [
            asyncio.create_task(served.client.post("/query", json={"query": "x", "stream": stream})) for _ in range(2)
        ]
        await eventually(lambda: served.stack.phases.waiting["prefill"] == 2)
        assert limited(await served.client.post("/query", json={"query": "x"})) == 2
        served.stack.phases.held.clear()
        served.stack.phases.released["prefill"].set()
        assert {answer.status_code for answer in await asyncio.gather(*asking)} == {200}
        assert (await served.client.post("/query", json={"query": "x"})).status_code == 200


async def test_concurrent_queries_of_all_keys_are_limited(in_process):
    async with in_process(max_concurrent_queries=1) as served:
        served.stack.phases.held.add("prefill")
        asking = asyncio.create_task(served.client.post("/query", json={"query": "x"}))
        await served.stack.phases.reached["prefill"].wait()
        assert limited(await served.client.post("/query", json={"query": "x"}), 503) == 2
        served.stack.phases.released["prefill"].set()
        assert (await asking).status_code == 200
        assert (await served.client.post("/query", json={"query": "x"})).status_code == 200


async def test_open_requests_are_limited_except_health(in_process):
    async with in_process(max_open_requests=1) as served:
        served.stack.phases.held.add("prefill")
        asking = asyncio.create_task(served.client.post("/query", json={"query": "x"}))
        await served.stack.phases.reached["prefill"].wait()
        refused = await served.client.get("/v1/collections")
        assert limited(refused, 503) == 2
        assert refused.headers["x-request-id"]
        for path in ("/healthz", "/readyz", "/metrics"):
            assert (await served.client.get(path)).status_code == 200
        served.stack.phases.released["prefill"].set()
        await asking
        assert (await served.client.get("/v1/collections")).status_code == 200


async def test_each_line_of_a_batch_counts_as_a_document(in_process):
    async with in_process(limits={"documents_per_minute": 4}) as served:
        assert (await served.client.put(PUT, content=b"x", headers=TEXT)).status_code == 202
        lines = b"".join(b'{"id": "d%d", "text": "x"}\n' % n for n in range(10))
        assert (await served.client.post(BATCH, content=lines, headers=LINES)).status_code == 202, "within the quota"
        refused = await served.client.put(PUT, content=b"x", headers=TEXT)
        # Eleven instead of four: more than half of the next minute is used up too.
        assert 30 < limited(refused) <= 120
        assert len(served.stack.retriever.uploads) == 1


async def test_uploads_over_quota_are_refused_before_reading(over_http):
    async with over_http(limits={"upload_bytes_per_minute": 100}) as live:
        assert (await live.client.put(PUT, content=b"x" * 200, headers=TEXT)).status_code == 202
        host, port = live.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(f"PUT {PUT} HTTP/1.1\r\nHost: x\r\nContent-Type: text/plain\r\nContent-Length: 9\r\n\r\n".encode())
        # No byte of the body is sent.
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 10)
        assert head.startswith(b"HTTP/1.1 429 ")
        writer.close()


async def test_concurrent_uploads_of_a_key_are_limited(in_process):
    async with in_process(limits={"concurrent_uploads": 1}) as served:
        served.stack.phases.held.add("put")
        sending = asyncio.create_task(served.client.put(PUT, content=b"x", headers=TEXT))
        await served.stack.phases.reached["put"].wait()
        assert limited(await served.client.put(PUT, content=b"x", headers=TEXT)) == 2
        served.stack.phases.held.clear()
        served.stack.phases.released["put"].set()
        assert (await sending).status_code == 202
        assert (await served.client.put(PUT, content=b"x", headers=TEXT)).status_code == 202


def test_rate_limited_error_can_be_pickled():
    import pickle

    copy = pickle.loads(pickle.dumps(RateLimited("no", retry_after_s=7)))
    assert (copy.message, copy.retry_after_s) == ("no", 7)


def test_settings_reject_a_body_limit_over_the_memory_limit():
    with pytest.raises(ValueError, match="max_bodies_bytes"):
        GatewaySettings(max_bodies_bytes=1000)
