"""``ragtree search`` and ``ragtree query`` against a real gateway with fake parts."""

import json
from collections.abc import Callable, Iterator

import httpx
import pytest
from click.testing import Result
from fastapi.testclient import TestClient
from gateway_fakes import ANSWER, Stack
from msgspec.structs import replace
from structlog.testing import capture_logs
from typer.testing import CliRunner

from gateway.app import create_app
from gateway.settings import GatewaySettings
from protocol.graph import ContextBudget, GraphMode, Relation, Subgraph
from protocol.retrieval import Pages, SearchKind
from services.cli import search
from services.cli.app import app as ragtree
from services.client import RequestFailed, StackClient

Run = Callable[..., Result]


@pytest.fixture
def run(stack: Stack, monkeypatch, tmp_path) -> Iterator[Run]:
    monkeypatch.chdir(tmp_path)
    # The gateway's log would mix with the command's output.
    with capture_logs(), TestClient(create_app(stack, GatewaySettings())) as http:

        def forward(asked: httpx.Request) -> httpx.Response:
            given = http.request(asked.method, str(asked.url), content=asked.content, headers=dict(asked.headers))
            return httpx.Response(given.status_code, headers=dict(given.headers), content=given.content)

        def connect(url: str | None, key: str | None) -> StackClient:
            return StackClient(url or "http://here", key, transport=httpx.MockTransport(forward))

        monkeypatch.setattr(search, "connect", connect)
        monkeypatch.setattr(search.results, "_width", 100)
        yield lambda *arguments: CliRunner().invoke(ragtree, arguments)


def test_search_prints_passages(run: Run, stack: Stack, monkeypatch):
    found = stack.retriever.search

    async def bracketed(request):
        async for stage in found(request):
            docs = [replace(doc, text=f"[bold]{doc.text}[/bold]", title="A title") for doc in stage.docs]
            docs[0] = replace(docs[0], pages=Pages(4, 4))
            yield replace(stage, docs=tuple(docs))

    monkeypatch.setattr(stack.retriever, "search", bracketed)
    only_english = '{"key": "lang", "type": "eq", "value": "en"}'
    done = run("search", "What is it?", "--top-k", "2", "--search", "sparse", "--filters", only_english)
    assert done.exit_code == 0, done.output
    assert "[bold]document number 1[/bold]" in done.output
    for shown in ("d1", "A title", "lines 2-3", "page 4"):
        assert shown in done.output
    assert "d2" not in done.output
    (request,) = stack.retriever.requests
    assert (request.search, request.filters.key, request.top_k) == (SearchKind.SPARSE, "lang", 2)


def test_search_by_the_graph_prints_the_relations_that_led_to_the_passages(run: Run, stack: Stack):
    stack.retriever.graph = Subgraph((), (Relation("Alice", "likes", "[Titanic]", 0.5, "d1", 0),))
    done = run("search", "Whom?", "--mode", "mix")
    assert done.exit_code == 0, done.output
    assert "Alice -likes-> [Titanic]  d1" in done.output
    assert stack.retriever.requests[-1].mode is GraphMode.MIX
    stack.retriever.graph = None
    refused = run("query", "Whom?", "--mode", "local")
    assert "no_graph" in str(refused.exception)


def test_the_context_is_printed_within_its_budgets(run: Run, stack: Stack):
    budgets = ("--max-entity-tokens", "1", "--max-relation-tokens", "2", "--max-total-tokens", "3")
    for command in ("search", "query"):
        done = run(command, "What is it?", "--top-k", "2", "--only-need-context", *budgets)
        assert done.exit_code == 0, done.output
        assert done.output.startswith("document number 0\ndocument number 1\n")
        assert stack.layout.budgets[-1] == ContextBudget(1, 2, 3)
    assert stack.controller.admitted == []
    assert run("query", "What?", "--max-total-tokens", "0").exit_code == 2


def test_search_as_json_and_partial(run: Run, stack: Stack):
    stack.retriever.missing_shards = ("1",)
    done = run("search", "What is it?", "--json")
    assert [result["text"] for result in json.loads(done.output)["results"]][3] == "document number 3"
    done = run("search", "What is it?")
    assert "results of these shards are missing: 1" in done.output


@pytest.mark.parametrize("command", ["search", "query"])
def test_errors(run: Run, command: str):
    assert isinstance(run(command, "What?", "--collection", "nowhere").exception, RequestFailed)
    refused = run(command, "What?", "--filters", "{")
    assert refused.exit_code == 2
    assert "not JSON" in refused.output


def test_query_marks_cited_sources(run: Run, stack: Stack):
    stack.generator.words = ("It ", "is ", "document ", "number ", "2.")
    lines = run("query", "What?").output.splitlines()
    assert [line.split()[1] for line in lines if "(cited)" in line] == ["d2"]
    stack.generator.words = ANSWER
    assert "(cited)" not in run("query", "What?").output
