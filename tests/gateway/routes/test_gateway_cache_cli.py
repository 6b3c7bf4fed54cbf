"""``ragtree cache`` and ``ragtree adapters`` against a real gateway with fake parts."""

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from click.testing import Result
from fake_adapters import FOUND
from fastapi.testclient import TestClient
from gateway_fakes import Stack
from structlog.testing import capture_logs
from typer.testing import CliRunner

from gateway.app import create_app
from gateway.background import idle
from gateway.limits.auth import namespace_of
from gateway.settings import GatewaySettings
from protocol.cache import CachePath
from protocol.kv import KvMemory
from services.cli import cache, connection
from services.cli.app import app as ragtree
from services.client import RequestFailed, StackClient, StackUnreachable

KEY = "sk-admin"
PATH = CachePath(namespace_of("default"), ("system", "hash1"))

Run = Callable[..., Result]


@pytest.fixture
def run(stack: Stack, monkeypatch, tmp_path) -> Iterator[Run]:
    """Runs the command line against a gateway with an administrator's key."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RAGTREE_CONFIG", raising=False)
    monkeypatch.setattr(cache, "_POLL_S", 0.001)
    monkeypatch.setattr(idle, "_FIRST_WAIT_S", 0.001)
    settings = GatewaySettings(admin_key=KEY)
    gateway = create_app(stack, settings, data_dir=tmp_path / "gateway")
    # The gateway's log would mix with the command's output.
    with capture_logs(), TestClient(gateway) as http:

        def forward(asked: httpx.Request) -> httpx.Response:
            given = http.request(asked.method, str(asked.url), content=asked.content, headers=dict(asked.headers))
            return httpx.Response(given.status_code, headers=dict(given.headers), content=given.content)

        def connect(url: str | None, key: str | None) -> StackClient:
            return StackClient(url or "http://here", key, transport=httpx.MockTransport(forward))

        monkeypatch.setattr(connection, "connect", connect)

        def run(*arguments: str, key: str | None = KEY, **options) -> Result:
            env = {"RAGTREE_GATEWAY__ADMIN_KEY": key, "RAGTREE_API_KEY": None, "COLUMNS": "160", "TERM": "dumb"}
            command = [] if arguments[0] == "adapters" else ["cache"]
            return CliRunner().invoke(ragtree, [*command, *arguments], env=env, **options)

        yield run


def done(result: Result) -> Result:
    assert result.exit_code == 0, (result.output, result.exception)
    return result


def test_stats(run: Run):
    shown = done(run("stats")).stdout
    assert "250" in shown
    assert "25%" in shown
    assert "policy LRU, 2 instances (1 draining), 0 running, 0 queued, 40% of prompt tokens" in shown
    assert json.loads(done(run("stats", "--json")).stdout)["tiers"][0]["evictions"] == 7


@pytest.fixture
def tokens_of_a_mib(stack: Stack):
    """The gateway asks the engine for its KV when it starts."""
    stack.generator.kv = KvMemory("f", "b", 1, 2**20, 9, 0, 0, 1.0, 1.0)


@pytest.mark.usefixtures("tokens_of_a_mib")
def test_stats_are_in_bytes_if_the_engine_says_what_a_token_takes(run: Run):
    shown = done(run("stats")).stdout
    assert "MiB" in shown
    assert "250.0" in shown
    assert "tokens" not in shown.partition("policy")[0]


def test_stats_without_tiers(run: Run, stack: Stack):
    stack.controller.tiers = ()
    assert "No tier has room" in done(run("stats")).stdout


def test_tree_output(run: Run):
    shown = done(run("tree", "--depth", "3")).stdout.splitlines()
    assert shown[0].startswith("namespace nnn")
    assert "hash-system" in shown[1]
    assert "locked" in shown[1]
    assert shown[2].index("hash0") > shown[1].index("hash-system")
    assert "1 more below" in shown[3]
    assert shown[-1] == "2 of 2 nodes"
    assert json.loads(done(run("tree", "--json")).stdout)["nodes"] == 2


def test_warming_from_a_file_of_plain_and_json_lines(run: Run, stack: Stack, tmp_path):
    file = tmp_path / "queries.txt"
    file.write_text('what is it?\n\n{"query": "and this?", "top_k": 2}\n"quoted"\n{"query": "else", "top_k": 2}\n')
    result = done(run("warm", str(file)))
    assert "2 document sequences warmed" in result.stderr
    assert {request.query for request in stack.retriever.requests} == {"what is it?", "and this?", "quoted", "else"}
    job = json.loads(done(run("warm", str(file), "--json")).stdout)
    assert (job["warmed"], job["present"], job["queries"]) == (0, 2, 4)


def test_warming_from_the_log(run: Run, stack: Stack):
    assert "0 of 0 queries" in done(run("warm", "--log")).stderr
    assert stack.retriever.requests == []


def test_warming_without_results_fails(run: Run, tmp_path):
    file = tmp_path / "queries.txt"
    file.write_text("x\n")
    result = run("warm", str(file), "--collection", "nowhere")
    assert result.exit_code == 1
    assert "nowhere" in result.stderr


@pytest.mark.parametrize("arguments", [[], ["FILE", "--log"]])
def test_warming_takes_a_file_or_the_log(run: Run, tmp_path, arguments: list[str]):
    (tmp_path / "FILE").write_text("x\n")
    assert run("warm", *arguments).exit_code == 2


def test_error_names_the_invalid_line(run: Run, tmp_path):
    file = tmp_path / "queries.txt"
    file.write_text('fine\n{"query": \n')
    result = run("warm", str(file))
    assert result.exit_code == 2
    assert "line 2" in result.stderr


def test_precomputing_twice(run: Run, stack: Stack):
    stack.retriever.chunks_of = 2
    shown = done(run("precompute")).stderr
    assert "10 chunks computed, 0 already cached, 0 without room, 0 failed, 0 not tried." in shown
    assert "tokens computed; 5 of 5 documents done." in shown
    assert len(stack.controller.warmed) == 10
    job = json.loads(done(run("precompute", "--json")).stdout)
    assert (job["chunks"]["present"], job["computed_tokens"]) == (10, 0)
    assert len(stack.controller.warmed) == 10


def test_precomputing_until_the_tiers_are_full(run: Run, stack: Stack):
    stack.controller.tiers = ()
    shown = done(run("precompute", "--collection", "default")).stderr
    assert "What did not fit was skipped." in shown
    assert "5 without room" in shown


def test_precomputing_frequent_sequences_only(run: Run, stack: Stack):
    assert "0 tokens computed; 0 of 0 documents done." in done(run("precompute", "--top", "3", "--no-donors")).stderr
    assert stack.controller.warmed == []


def test_failed_precomputation(run: Run):
    result = run("precompute", "--collection", "nowhere")
    assert result.exit_code == 1
    assert "nowhere" in result.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["--no-donors"],
        ["--follow", "a", "--cancel", "a"],
        ["--follow", "a", "--top", "3"],
        ["--cancel", "a", "--collection", "c"],
        ["--top", "0"],
    ],
)
def test_precomputing_refuses_contradictions(run: Run, arguments: list[str]):
    assert run("precompute", *arguments).exit_code == 2


def test_ctrl_c_leaves_the_precomputation_running(run: Run, stack: Stack, monkeypatch):
    stack.controller.busy = True

    def pressed(_client: StackClient, _job_id: str) -> dict[str, Any]:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(StackClient, "precomputation", pressed)
        result = run("precompute")
    assert result.exit_code == 130
    (job_id,) = set(re.findall(r"precompute_\w+", result.stderr))
    assert "still running" in str(run("precompute").exception)
    stack.controller.busy = False
    job = json.loads(done(run("precompute", "--follow", job_id, "--json")).stdout)
    assert (job["job_id"], job["status"], job["chunks"]["computed"]) == (job_id, "completed", 5)


def test_cancelling_a_precomputation(run: Run, stack: Stack, monkeypatch):
    """The command that follows the job ends, and says that the job was cancelled."""
    stack.controller.busy = True
    cancelled: list[Result] = []
    asked_for = StackClient.precomputation

    def by_another_command(client: StackClient, job_id: str) -> dict[str, Any]:
        cancelled.append(run("precompute", "--cancel", job_id))
        return asked_for(client, job_id)

    monkeypatch.setattr(StackClient, "precomputation", by_another_command)
    result = run("precompute")
    assert (result.exit_code, [by.exit_code for by in cancelled]) == (1, [0])
    for shown in (result, *cancelled):
        assert "The job was cancelled." in shown.stderr


@pytest.mark.parametrize(
    "lost",
    [
        RequestFailed(404, {"message": "There is no job.", "code": "unknown_job"}),
        StackUnreachable("no stack answers"),
    ],
)
def test_a_gateway_that_restarts_loses_the_precomputation(run: Run, stack: Stack, monkeypatch, lost: Exception):
    stack.controller.busy = True

    def restarted(_client: StackClient, _job_id: str) -> dict[str, Any]:
        raise lost

    monkeypatch.setattr(StackClient, "precomputation", restarted)
    refused = run("precompute").exception
    assert isinstance(refused, cache.JobLost)
    assert "the same command continues it" in str(refused)


def test_following_an_unknown_precomputation(run: Run):
    refused = run("precompute", "--follow", "precompute_x").exception
    assert isinstance(refused, RequestFailed)
    assert refused.error["code"] == "unknown_job"


def test_pinning_and_unpinning(run: Run, stack: Stack):
    stack.controller.nodes.add(PATH)
    assert "Pinned 1 of 1 chunks of d1." in done(run("pin", "d1")).stderr
    assert stack.controller.pins[PATH] == 1
    assert json.loads(done(run("pin", "d1", "--unpin", "--json")).stdout)["pinned"] is False
    assert stack.controller.pins[PATH] == 0
    refused = run("pin", "d2").exception
    assert isinstance(refused, RequestFailed)
    assert refused.error["code"] == "unknown_node"


@pytest.mark.parametrize(("arguments", "typed", "cleared"), [([], "n\n", False), ([], "y\n", True), (["-y"], "", True)])
def test_clearing_needs_confirmation(run: Run, stack: Stack, arguments: list[str], typed: str, cleared: bool):
    stack.controller.nodes.add(PATH)
    result = run("clear", *arguments, input=typed)
    assert (result.exit_code == 0) == cleared == ("1 nodes evicted" in result.stderr)


def test_missing_key_shows_nothing(run: Run):
    refused = run("stats", key=None).exception
    assert isinstance(refused, RequestFailed)
    assert refused.status == 401


def test_configured_key_is_sent_to_the_configured_stack_only(run: Run, tmp_path):
    (tmp_path / "ragtree.yaml").write_text(f"gateway: {{admin_key: {KEY}}}\n")
    done(run("stats", key=None))
    refused = run("stats", "--url", "http://elsewhere", key=None).exception
    assert isinstance(refused, RequestFailed)


def test_adapters_are_shown_loaded_and_unloaded(run: Run, stack: Stack, tmp_path) -> None:
    assert "No adapters are served." in done(run("adapters", "list")).output
    # A folder is sent whole, and what may be an id as it is.
    assert "acme/brief is served." in done(run("adapters", "load", "acme/brief", "./[brief]")).output
    assert json.loads(done(run("adapters", "load", "terse", "acme/terse", "--json")).stdout)["digest"] == FOUND
    sources = {name: adapter.source for name, adapter in stack.controller.adapters.items()}
    assert sources == {"acme/brief": str(tmp_path / "[brief]"), "terse": "acme/terse"}
    listed = done(run("adapters", "list")).output
    assert str(tmp_path / "[brief]") in listed
    assert "acme/terse" in listed
    assert "terse is unloaded." in done(run("adapters", "unload", "terse")).output
    assert [one["name"] for one in json.loads(done(run("adapters", "list", "--json")).stdout)["data"]] == ["acme/brief"]
