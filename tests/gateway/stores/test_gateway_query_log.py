"""The log of past queries."""

import asyncio
import json
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from gateway_fakes import MODEL, Stack
from query_log_contract import QueryLogContract, as_search, search
from structlog.testing import capture_logs

from gateway.stores import query_log
from gateway.stores.query_log import QueryLogFile
from protocol.retrieval import SearchRequest


class TestQueryLogInAFile(QueryLogContract):
    @pytest.fixture
    def noting(self, tmp_path):
        @asynccontextmanager
        async def opened() -> AsyncIterator[QueryLogFile]:
            log = QueryLogFile(tmp_path, 1)
            yield log
            await log.close()

        return opened


async def noted(folder, *searches: SearchRequest, max_mib: int = 1) -> None:
    log = QueryLogFile(folder, max_mib, clock=lambda: 12.5)
    for one in searches:
        log.note(one)
    await log.close()


def lines(folder, name: str = "queries.jsonl") -> list[dict]:
    return [json.loads(line) for line in (folder / name).read_text().splitlines()]


async def test_query_is_logged_to_a_private_file(tmp_path):
    folder = tmp_path / "gateway"
    await noted(folder, search())
    assert lines(folder) == [{"time": 12.5, "tenant": "acme", "collection": "c", "query": "query 0", "top_k": 3}]
    assert stat.S_IMODE((folder / "queries.jsonl").stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


async def test_two_files_hold_the_newest_queries(tmp_path, monkeypatch):
    monkeypatch.setattr(query_log, "MIB", 400)
    await noted(tmp_path, *(search(number) for number in range(20)))
    assert sorted(file.name for file in tmp_path.iterdir()) == ["queries.1.jsonl", "queries.jsonl"]
    assert all(file.stat().st_size <= 400 for file in tmp_path.iterdir())
    kept = [line["query"] for name in ("queries.1.jsonl", "queries.jsonl") for line in lines(tmp_path, name)]
    assert 4 < len(kept) < 20
    assert kept == [f"query {number}" for number in range(20)][-len(kept) :]
    assert len(await QueryLogFile(tmp_path, 1).counted(as_search)) == len(kept)


async def test_invalid_lines_are_skipped(tmp_path):
    await noted(tmp_path, search(1))
    with (tmp_path / "queries.jsonl").open("a") as file:
        file.write('{"query": "half a li\n{"query": ""}\n\n')
    await noted(tmp_path, search(2))
    assert await QueryLogFile(tmp_path, 1).counted(as_search) == {search(1): 1, search(2): 1}


@pytest.mark.parametrize("off", ["no folder", "0 MiB"])
async def test_log_can_be_turned_off(tmp_path, off: str):
    log = QueryLogFile(None if off == "no folder" else tmp_path, 0 if off == "0 MiB" else 1)
    log.note(search())
    assert await log.counted(as_search) == {}
    await log.close()
    assert list(tmp_path.iterdir()) == []


async def test_disk_error_is_logged_once_and_breaks_no_query(tmp_path, in_process):
    blocked = tmp_path / "file"
    blocked.write_text("no folder")
    with capture_logs() as logs:
        async with in_process(data_dir=blocked) as served:
            for _ in range(3):
                assert (await served.client.post("/query", json={"query": "x"})).status_code == 200
    assert [line["event"] for line in logs].count("query_not_logged") == 1


async def test_logging_does_not_block_the_event_loop(tmp_path, monkeypatch):
    opened = asyncio.Event()
    loop = asyncio.get_running_loop()
    release = __import__("threading").Event()

    def slow(self, *_):
        loop.call_soon_threadsafe(opened.set)
        release.wait(10)

    monkeypatch.setattr(QueryLogFile, "_append", slow)
    monkeypatch.setattr(query_log, "_MOST_WAITING", 3)
    log = QueryLogFile(tmp_path, 1)
    for number in range(10):
        log.note(search(number))
    await opened.wait()
    assert log._waiting == 3, "lines over the bound must be dropped"
    release.set()
    await log.close()


async def test_gateway_logs_its_queries(tmp_path, in_process, stack: Stack):
    chat = {"model": MODEL, "messages": [{"role": "user", "content": "hello"}]}
    own_prompt = {"model": MODEL, "messages": [{"role": "system", "content": "be a pirate"}, *chat["messages"]]}
    filters = {"key": "lang", "type": "eq", "value": "en"}
    async with in_process(data_dir=tmp_path) as served:
        for url, body in [
            ("/query", {"query": " what ", "top_k": 2, "filters": filters}),
            ("/query", {"query": "what", "collection": "empty"}),
            ("/v1/chat/completions", chat),
            ("/v1/chat/completions", own_prompt),
        ]:
            await served.client.post(url, json=body)
    assert [(line["query"], line["top_k"], line.get("filters")) for line in lines(tmp_path)] == [
        ("what", 2, filters),
        ("hello", 4, None),
    ]


async def test_gateway_logs_nothing_if_turned_off(tmp_path, in_process):
    async with in_process(data_dir=tmp_path, query_log_mib=0) as served:
        assert (await served.client.post("/query", json={"query": "x"})).status_code == 200
    assert list(tmp_path.iterdir()) == []
