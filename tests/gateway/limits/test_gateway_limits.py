import asyncio
import gzip

import httpx
import pytest
from gateway_requests import pieces

DOCUMENT = "/v1/collections/default/documents/d"
TEXT = {"Content-Type": "text/plain"}


@pytest.mark.parametrize("path", ["/query", "/v1/chat/completions", DOCUMENT])
async def test_declared_bodies_over_the_limit_are_refused_before_reading(over_http, path: str):
    async with over_http(max_document_bytes=1000, max_query_chars=125) as live:
        host, port = live.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        method = "PUT" if path == DOCUMENT else "POST"
        writer.write(f"{method} {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 1001\r\n\r\n".encode())
        # No byte of the body is sent.
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 10)
        assert head.startswith(b"HTTP/1.1 413 ")
        writer.close()


@pytest.mark.parametrize(
    ("method", "path", "content_type"),
    [("POST", "/query", "application/json"), ("PUT", DOCUMENT, "text/plain"), ("PUT", DOCUMENT, "application/json")],
)
async def test_undeclared_bodies_are_counted_while_reading(over_http, method: str, path: str, content_type: str):
    async with over_http(max_document_bytes=1000, max_query_chars=125) as live:
        headers = {"Content-Type": content_type}
        answer = await live.client.request(method, path, content=pieces(3, 500), headers=headers)
        assert (answer.status_code, answer.json()["error"]["code"]) == (413, "payload_too_large")
        assert live.stack.retriever.uploads == []


async def test_bodies_at_the_limit_pass(over_http):
    async with over_http(max_document_bytes=1000) as live:
        assert (await live.client.put(DOCUMENT, content=b"x" * 1000, headers=TEXT)).status_code == 202
        assert (await live.client.put(DOCUMENT, content=pieces(2, 500), headers=TEXT)).status_code == 202


async def test_documents_may_be_larger_than_questions(served):
    large = b"x" * 1_000_000
    assert (await served.client.put(DOCUMENT, content=large, headers=TEXT)).status_code == 202
    headers = {"Content-Type": "application/json"}
    assert (await served.client.post("/query", content=large, headers=headers)).status_code == 413


async def test_request_id_is_echoed_or_made(served):
    given = await served.client.get("/healthz", headers={"X-Request-Id": "a.b:c-1_2"})
    assert given.headers["x-request-id"] == "a.b:c-1_2"
    first, second = [(await served.client.get("/healthz")).headers["x-request-id"] for _ in range(2)]
    assert first != second
    for status in ("/nowhere", "/readyz"):
        assert (await served.client.get(status)).headers["x-request-id"]


@pytest.mark.parametrize("given", ["", "a b", "x" * 129, "a<script>", "ä"])
async def test_malformed_request_ids_are_replaced(served, given: str):
    answer = await served.client.get("/healthz", headers=httpx.Headers({"X-Request-Id": given}, encoding="utf-8"))
    assert answer.headers["x-request-id"] not in ("", given)


async def test_unhandled_error_is_a_500_without_details(served, monkeypatch):
    async def broken(tenant: str) -> None:
        raise RuntimeError("secret path")

    monkeypatch.setattr(served.stack.retriever, "list_collections", broken)
    answer = await served.client.get("/v1/collections", headers={"X-Request-Id": "r-1"})
    assert (answer.status_code, answer.headers["x-request-id"]) == (500, "r-1")
    assert answer.json()["error"]["code"] == "internal_error"
    assert "secret" not in answer.text
    assert "r-1" in answer.json()["error"]["message"]


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br"])
async def test_compressed_bodies_are_not_decompressed(served, encoding: str):
    """The gateway decompresses nothing, so a small body cannot become a large one."""
    packed = gzip.compress(b'{"query": "x"}' + b" " * 10_000_000)
    headers = {"Content-Type": "application/json", "Content-Encoding": encoding}
    assert (await served.client.post("/query", content=packed, headers=headers)).status_code == 400
    headers["Content-Type"] = "text/plain"
    assert (await served.client.put(DOCUMENT, content=packed, headers=headers)).status_code == 400
