"""Soaks: growing memory and failed requests are found."""

import json
import os
import signal
import subprocess
import sys
from contextlib import ExitStack
from types import SimpleNamespace

import psutil
import pytest
import typer
from loadtest_runs import ROOT, log_of, until
from slow_frame_server import SlowFrameServer
from typer.testing import CliRunner

from loadtest.errors import LoadTestError
from ragtree_lab.soak.__main__ import soak
from ragtree_lab.soak.capacity import find_capacity
from ragtree_lab.soak.memory import Bound, Sample, StackProcesses, trends

MIB = 2**20
FAMILY = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", '''
import time
kept = []
while True:
    kept.append(bytearray(b"x") * 2**20)
    time.sleep(0.02)
'''])
time.sleep(60)
"""


def line(pid, first, slope, times):
    return [Sample(at, pid, f"p{pid}", round((first + slope * at) * MIB)) for at in times]


def test_trend_ignores_the_warm_up():
    warming = [Sample(at, 1, "p1", at * 100 * MIB) for at in range(10)]
    found = trends(warming + line(1, 900, 0.5, range(10, 31)), after=10)
    assert [(trend.pid, trend.seconds) for trend in found] == [(1, 20.0)]
    assert found[0].first / MIB == pytest.approx(905)
    assert found[0].growth / MIB == pytest.approx(10)


def test_trends_are_sorted_by_growth_without_short_lived_processes():
    samples = line(1, 10, 0.0, range(100)) + line(2, 10, 0.1, range(100)) + line(3, 10, 5.0, range(60, 80))
    assert [trend.pid for trend in trends(samples, after=20)] == [2, 1]
    assert trends([], after=20) == []


@pytest.mark.parametrize(
    ("first", "growth", "flat"), [(100, 15, True), (100, 17, False), (1000, 49, True), (1000, 51, False), (9, -5, True)]
)
def test_flat_is_below_a_share_or_an_amount(first, growth, flat):
    (trend,) = trends(line(1, first, growth / 10, range(11)), after=0)
    assert Bound(0.05, 16 * MIB).holds(trend) is flat


def test_growth_of_a_child_process_is_measured():
    parent = subprocess.Popen([sys.executable, "-c", FAMILY])
    root = psutil.Process(parent.pid)
    try:
        until(root.children, timeout_s=10)
        (child,) = root.children()
        until(lambda: child.memory_info().rss > 30 * MIB, timeout_s=20)
        processes = StackProcesses(root)
        before = {sample.pid: sample.bytes for sample in processes.samples(0.0)}
        until(lambda: child.memory_info().rss > 60 * MIB, timeout_s=20)
        after = {sample.pid: sample.bytes for sample in processes.samples(1.0)}
        assert set(before) == set(after) == {parent.pid, child.pid}
        assert after[child.pid] - before[child.pid] > 15 * MIB
        assert abs(after[parent.pid] - before[parent.pid]) < MIB
    finally:
        for process in [*root.children(recursive=True), root]:
            process.kill()
        parent.wait()


@pytest.mark.parametrize(
    ("can", "found"), [(0.07, 0.0625), (0.2, 0.1875), (0.4, 0.375), (0.6, 0.5), (3.5, 3.0), (2.5, 2.0), (1e9, 1024.0)]
)
def test_capacity_is_the_highest_rate_with_good_answers(can, found):
    def load(rate):
        return SimpleNamespace(total=SimpleNamespace(good_share=1.0 if rate <= can else 0.89))

    assert find_capacity(load) == found


def test_stack_without_good_answers_has_no_capacity():
    with pytest.raises(LoadTestError, match="even at"):
        find_capacity(lambda _rate: SimpleNamespace(total=SimpleNamespace(good_share=None)))


def begin_soak(url, folder, *options):
    """Start a soak of four seconds."""
    command = [sys.executable, "-m", "ragtree_lab.soak", "--url", url, "--minutes", "0.07", "--rate", "8"]
    command += ["--growth-mib", "200", "--report-dir", str(folder), *options]
    output = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    # A process group of its own, as in a terminal, for Ctrl-C.
    return subprocess.Popen(command, cwd=ROOT, start_new_session=True, **output)


@pytest.fixture(scope="module")
def soaks(tmp_path_factory):
    """The status, log and folder of a soak of each question. They run at the same time, as they mostly wait."""
    begun = {}
    with ExitStack() as servers:
        for question in ("plain", "unended"):
            folder = tmp_path_factory.mktemp(question)
            (folder / "questions.jsonl").write_text(json.dumps({"query": question}))
            server = servers.enter_context(SlowFrameServer())
            options = ("--", "--questions", str(folder / "questions.jsonl"))
            begun[question] = begin_soak(server.url, folder, *options), folder
        logs = {question: log_of(process) for question, (process, _) in begun.items()}
    return {
        question: (process.returncode, logs[question], next(folder.glob("soak-*")))
        for question, (process, folder) in begun.items()
    }


@pytest.mark.parametrize(("question", "problem"), [("plain", None), ("unended", "no terminal event")])
def test_soak_passes_only_if_nothing_fails(soaks, question, problem):
    status, log, folder = soaks[question]
    verdict = json.loads((folder / "soak.json").read_text())
    assert status == (1 if problem else 0), log
    assert any(problem in text for text in verdict["problems"]) if problem else verdict["problems"] == []
    assert psutil.Process().pid in {trend["pid"] for trend in verdict["memory"]}
    assert (folder / "memory.png").exists()
    (results,) = folder.glob("load/*/results.json")
    settings = json.loads(results.read_text())["run"]["settings"]
    assert (settings["schedule"], settings["disconnect_share"]) == ("8.0000:4.2", 0.1)
    assert min(settings["ingest_rate"], settings["delete_rate"]) > 0


def test_interrupted_soak_fails(tmp_path):
    with SlowFrameServer() as server:
        process = begin_soak(server.url, tmp_path, "--minutes", "5", "--", "--documents", "4")
        until(lambda: any(file.stat().st_size for file in tmp_path.glob("soak-*/memory.jsonl")), timeout_s=30)
        os.killpg(process.pid, signal.SIGINT)
        log = log_of(process)
    (folder,) = tmp_path.glob("soak-*")
    assert process.returncode == 1, log
    assert json.loads((folder / "soak.json").read_text())["problems"][0] == "the soak was interrupted"


def test_soak_needs_a_stack_on_this_machine(tmp_path):
    app = typer.Typer()
    app.command()(soak)
    result = CliRunner().invoke(app, ["--url", "http://127.0.0.1:9", "--report-dir", str(tmp_path)])
    assert result.exit_code == 2
    assert "no process of this machine listens at http://127.0.0.1:9" in result.stderr
