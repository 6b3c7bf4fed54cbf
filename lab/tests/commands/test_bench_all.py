"""``ragtree bench all`` with scripted benchmarks, each a real process."""

import io
import json
import os
import signal
import subprocess
import threading
import time
from pathlib import Path

import pytest
from rich.console import Console
from scripted_benchmarks import FAILS, HANGS, MEASURES, launcher, runs
from typer.testing import CliRunner, Result

from protocol.errors import ConfigError
from ragtree_lab.commands.all import LAUNCHER
from ragtree_lab.commands.common.suite_progress import SuiteProgress
from ragtree_lab.suite.outcome import Outcome, Status
from services.cli.app import app


@pytest.fixture(autouse=True)
def _scripted(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    scripts = launcher(tmp_path, scheduling=MEASURES, tiers=FAILS, overhead=HANGS)
    monkeypatch.setattr("ragtree_lab.commands.all.LAUNCHER", scripts)


def bench_all(*options: str) -> Result:
    return CliRunner().invoke(app, ["bench", "all", "--data", "nowhere", *options])


def test_json_has_every_benchmark_with_its_command_and_result():
    ran = bench_all("--only", "scheduling,recall", "--quick", "--out", "report", "--json")
    assert ran.exit_code == 0
    printed = json.loads(ran.stdout)
    assert printed["folder"] == "report"
    measured, skipped = printed["benchmarks"]
    assert (measured["name"], measured["status"], measured["result"]["p50_ratio"]) == ("scheduling", "measured", 1.2345)
    assert measured["command"] == "ragtree bench scheduling --nodes 100000 --requests 5000 --json"
    assert measured["seconds"] > 0
    assert (skipped["name"], skipped["status"], skipped["result"]) == ("recall", "skipped", None)
    assert json.loads(Path("report/scheduling.json").read_text()) == measured["result"]
    assert "1 of 2: scheduling, measured after 0:00:0" in ran.stderr
    assert "2 of 2: recall, skipped: no data set 'squad' at nowhere" in ran.stderr


def test_a_failure_is_shown_and_is_the_exit_status_though_others_are_measured():
    ran = bench_all("--only", "scheduling,tiers")
    assert ran.exit_code == 1
    (folder,) = Path().glob("bench-report-*")
    assert f"report: {folder}/report.md" in ran.stdout
    assert "exit status 3" in ran.stdout
    assert "error: there is no model" in (folder / "report.md").read_text()
    assert (folder / "scheduling.json").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_running_benchmark_and_keeps_the_others(number):
    before = signal.signal(number, signal.default_int_handler)

    def send():
        while not Path("pid").exists():
            time.sleep(0.01)
        os.kill(os.getpid(), number)

    sender = threading.Thread(target=send)
    sender.start()
    try:
        ran = bench_all("--only", "scheduling,overhead,replay", "--out", "report", "--json")
    finally:
        sender.join()
        signal.signal(number, before)
    assert ran.exit_code == 128 + number
    assert not runs(int(Path("pid").read_text()))
    outcomes = json.loads(ran.stdout)["benchmarks"]
    assert [(each["name"], each["status"]) for each in outcomes] == [("scheduling", "measured"), ("overhead", "ended")]
    assert "Not run so far: replay." in Path("report/report.md").read_text()


def test_unknown_names_and_a_full_folder_are_refused_before_anything_runs():
    refused = bench_all("--only", "tires").exception
    assert isinstance(refused, ConfigError)
    assert "the benchmarks are scheduling, policies" in str(refused)
    Path("full").mkdir()
    Path("full/thesis").touch()
    refused = bench_all("--only", "scheduling", "--out", "full").exception
    assert isinstance(refused, ConfigError)
    assert "full is not empty" in str(refused)
    assert not Path("arguments").exists()


def test_the_launcher_runs_a_benchmark():
    command = [*LAUNCHER, "scheduling", "--nodes", "100", "--requests", "1", "--json"]
    ran = subprocess.run(command, cwd=Path(__file__).parents[3], capture_output=True, text=True, check=True)
    assert json.loads(ran.stdout)["by_nodes"].keys() == {"100"}


def test_progress_without_a_terminal_is_a_line_now_and_then():
    now, written = 0.0, io.StringIO()
    with SuiteProgress(Console(file=written), lambda: now) as progress:
        progress.began("recall", 2, 3)
        for _ in range(70):
            progress.says(f"[asking]: {int(now) // 40}")
            now += 1.0
        progress.ended(Outcome("recall", "", now, Status.FAILED, "it ended with exit status 1"))
    assert written.getvalue().splitlines() == [
        "2 of 3: recall begins, 0:00:00 so far",
        "  [asking]: 0",
        "  [asking]: 1",
        "2 of 3: recall, failed after 0:01:10: it ended with exit status 1",
    ]


def test_progress_on_a_terminal_shows_the_times_and_what_the_benchmark_says():
    now, written = 0.0, io.StringIO()
    with SuiteProgress(Console(file=written, force_terminal=True, width=80), lambda: now) as progress:
        now = 60.0
        progress.began("recall", 2, 3)
        now = 65.0
        progress.says("[asking]: 3 of 9 " + "x" * 200)
        progress.ended(Outcome("recall", "", 5.0, Status.MEASURED))
    assert "2 of 3: recall (0:00:05, 0:01:05 in all) [asking]: 3 of 9 xx" in written.getvalue()
    assert "2 of 3: recall, measured after 0:00:05" in written.getvalue()
