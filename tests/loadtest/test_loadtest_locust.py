"""The load test as users start it: open loop, disconnects, writes, Ctrl-C, web page, invalid options."""

import socket
import subprocess
import sys

import httpx
import pytest
from loadtest_runs import ROOT, begin, end, log_of, trace, until
from slow_frame_server import FIRST_S, STALL_S, SlowFrameServer

from loadtest.locust_process import END_ARRIVALS
from loadtest.reporting.plots import PLOTS
from loadtest.reporting.request_records import Outcome, WriteAction
from loadtest.settings import LoadSettings


@pytest.fixture
def server():
    with SlowFrameServer() as server:
        yield server


@pytest.mark.prove("loadtest/")
def test_stalled_answers_do_not_delay_arrivals(server, tmp_path):
    due = [0.03 * number for number in range(20)]
    ran = end(begin(tmp_path, server.url, "--trace", trace(tmp_path, *((at, "stalls") for at in due))), tmp_path)
    asked = sorted(at for _, at in server.asked)
    gaps = [at - asked[0] for at in asked]
    assert gaps == pytest.approx(due, abs=0.2)
    assert asked[-1] - asked[0] < STALL_S
    assert {record.outcome for record in ran.queries} == {Outcome.ANSWERED}
    assert min(record.ttft for record in ran.queries) >= STALL_S
    assert ran.returncode == 0


@pytest.mark.prove("loadtest/")
def test_late_requests_count_from_when_they_were_due(server, tmp_path):
    ran = end(begin(tmp_path, server.url, "--trace", trace(tmp_path, *[(0.0, "plain")] * 250)), tmp_path)
    assert max(record.sent for record in ran.queries) > 0.03
    assert all(record.ttft >= record.sent + FIRST_S for record in ran.queries)
    assert "**The load test itself was late**" in (ran.folder / "report.md").read_text()


@pytest.mark.prove("loadtest/")
def test_arrivals_beyond_max_open_are_missed(server, tmp_path):
    lines = [(0.02 * number, "stalls") for number in range(10)]
    ran = end(begin(tmp_path, server.url, "--max-open", "3", "--trace", trace(tmp_path, *lines)), tmp_path)
    outcomes = [record.outcome for record in sorted(ran.queries, key=lambda record: record.number)]
    assert outcomes == [Outcome.ANSWERED] * 3 + [Outcome.MISSED] * 7
    assert len(server.asked) == 3


def test_run_ingests_its_corpus_and_follows_the_schedule(server, tmp_path):
    options = ["--documents", "12", "--document-words", "20", "--disconnect-share", "0.5", "--max-tokens", "3"]
    writes = ["--ingest-rate", "4", "--delete-rate", "2"]
    settings = {"LOCUST_SCHEDULE": "20:2", "LOCUST_SEED": "3", "RAGTREE_API_KEY": "a-key"}
    ran = end(begin(tmp_path, server.url, *options, *writes, **settings), tmp_path)
    assert server.paths["POST /v1/collections/loadtest-12x20-3/documents:batch"] == 1
    assert {line for line in server.headers if line.startswith("Authorization")} == {"Authorization: Bearer a-key"}
    assert "a-key" not in (ran.folder / "results.json").read_text()
    assert ran.results["run"]["settings"]["schedule"] == "20:2"
    assert len({question for question, _ in server.asked}) == 3
    outcomes = [record.outcome for record in ran.queries]
    assert 15 < len(outcomes) < 70
    assert set(outcomes) == {Outcome.ANSWERED, Outcome.DISCONNECTED}
    until(lambda: server.gone == outcomes.count(Outcome.DISCONNECTED), timeout_s=5)
    assert {write.action for write in ran.writes} == set(WriteAction)
    put = {path for path in server.paths if path.startswith("PUT")}
    deleted = {path for path in server.paths if path.startswith("DELETE")}
    assert {path.removeprefix("PUT") for path in put} == {path.removeprefix("DELETE") for path in deleted}


@pytest.mark.prove("loadtest/")
def test_interrupted_run_has_a_report(server, tmp_path):
    lines = [(0.0, "plain"), (FIRST_S + 1.2, "stalls"), (60.0, "plain")]
    process = begin(tmp_path, server.url, "--trace", trace(tmp_path, *lines))
    until(lambda: len(server.asked) == 2, timeout_s=20)
    ran = end(process, tmp_path, interrupt=True)
    assert ran.results["total"]["outcomes"] == {"answered": 1, "unfinished": 1}
    assert "answered requests, in milliseconds" in (ran.folder / "report.md").read_text().lower()
    assert all((ran.folder / plot).exists() for plot in PLOTS)
    assert ran.returncode == 0


@pytest.mark.prove("loadtest/")
def test_ended_arrivals_let_open_requests_finish(server, tmp_path):
    lines = [(0.0, "plain"), (0.1, "stalls"), (60.0, "plain")]
    process = begin(tmp_path, server.url, "--trace", trace(tmp_path, *lines))
    until(lambda: len(server.asked) == 2, timeout_s=20)
    process.send_signal(END_ARRIVALS)
    ran = end(process, tmp_path)
    assert [record.outcome for record in ran.queries] == [Outcome.ANSWERED] * 2
    assert ran.returncode == 0


@pytest.mark.prove("loadtest/")
def test_web_page_starts_runs(server, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    web = ["--web-host", "127.0.0.1", "--web-port", str(port), "--trace", trace(tmp_path, (0.0, "plain"))]
    process = begin(tmp_path, server.url, *web, headless=False)
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}") as page:
            until(lambda: answers(page), timeout_s=20)
            for runs in (1, 2):
                form = {"user_count": "5", "spawn_rate": "5", "host": server.url, "zipf": "0.5"}
                assert page.post("/swarm", data=form).json()["success"]
                until(lambda runs=runs: len(list(tmp_path.glob("*/report.md"))) == runs, timeout_s=20)
                until(lambda: page.get("/stats/requests").json()["state"] == "stopped", timeout_s=20)
    finally:
        process.terminate()
        log_of(process)
    assert [question for question, _ in server.asked] == ["plain"] * 2
    assert '"zipf": 0.5' in next(tmp_path.glob("*/run.json")).read_text()


def answers(page):
    try:
        return page.get("/").is_success
    except httpx.TransportError:
        return False


@pytest.mark.prove("loadtest/")
def test_missing_stack_is_reported_with_instructions(tmp_path):
    process = begin(tmp_path, "http://127.0.0.1:9")
    log = log_of(process)
    assert process.returncode == 1
    assert "nothing answers at http://127.0.0.1:9. Start a stack there (`ragtree up -d`" in log
    assert list(tmp_path.glob("*/")) == []


def test_help_lists_every_option():
    command = [sys.executable, "-m", "loadtest", "--help"]
    text = " ".join(subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split())
    for name in LoadSettings.__struct_fields__:
        assert f"--{name.replace('_', '-')} <" in text
        assert f"[LOCUST_{name.upper()}]" in text


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--schedule", "fast"], "schedule: 'fast' is not a step"),
        (["--disconnect-share", "2"], "disconnect_share"),
        (["--master", "--master-bind-host", "127.0.0.1", "--master-bind-port", "0"], "runs in one process"),
    ],
)
def test_invalid_options_are_refused(server, tmp_path, options, says):
    process = begin(tmp_path, server.url, *options)
    log = log_of(process)
    assert process.returncode == 1
    assert says in log
    assert server.asked == []
