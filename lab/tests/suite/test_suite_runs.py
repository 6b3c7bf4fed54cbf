"""A suite of scripted benchmarks, each a real process: results, failures, and an early end."""

import json
import os
from pathlib import Path

import pytest
from scripted_benchmarks import FACTS, FAILS, HANGS, MEASURES, Noted, benchmarks, launcher, runs

from ragtree_lab.suite.catalogue import Benchmark
from ragtree_lab.suite.outcome import Status
from ragtree_lab.suite.suite import Suite
from ragtree_lab.suite.suite_folder import SuiteFolder

RESULT = {"p50_ratio": 1.2345, "compiled": True, "by_nodes": {"3000": {"p50_us": 1234.5, "p99_us": 0.5}}}


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def suite(watcher: Noted, **scripts: str) -> Suite:
    return Suite(launcher(Path(), **scripts), SuiteFolder(Path("report")), FACTS, watcher)


def report() -> str:
    return Path("report/report.md").read_text()


def test_each_benchmark_leaves_its_result_its_log_and_a_section():
    ran = suite(watcher := Noted(), scheduling=MEASURES)
    ran.run(benchmarks("scheduling"), Path("data"), quick=True)
    (outcome,) = ran.outcomes
    assert (outcome.status, outcome.result, outcome.why) == (Status.MEASURED, RESULT, "")
    assert outcome.command == "ragtree bench scheduling --size 1 --json"
    assert Path("arguments").read_text() == "scheduling --size 1 --json"
    assert json.loads(Path("report/scheduling.json").read_text()) == RESULT
    log = Path("report/scheduling.log").read_text()
    assert log == "measuring: 1 of 1\na library's greeting\na library's farewell\n"
    assert "`ragtree bench scheduling --size 1 --json`" in report()
    assert "| decisions on a request, largest tree over smallest, median | 1.23 x |" in report()
    assert "Not run" not in report()
    assert watcher.began_names == [("scheduling", 1, 1)]
    assert watcher.outcomes == ran.outcomes
    assert sorted(file.name for file in Path("report").iterdir()) == ["report.md", "scheduling.json", "scheduling.log"]


def test_full_sizes_are_the_benchmarks_defaults():
    ran = suite(Noted(), scheduling=MEASURES)
    ran.run(benchmarks("scheduling"), Path("data"), quick=False)
    assert ran.outcomes[0].command == "ragtree bench scheduling --json"


def test_a_failure_is_reported_and_stops_no_other_benchmark():
    ran = suite(Noted(), recall=FAILS, scheduling=MEASURES)
    ran.run(benchmarks("recall", "scheduling"), Path("data"), quick=False)
    failed, measured = ran.outcomes
    assert (failed.status, failed.why, failed.result) == (Status.FAILED, "it ended with exit status 3", None)
    assert failed.log == ("loading", "error: there is no model")
    assert "    error: there is no model" in report()
    assert measured.status is Status.MEASURED
    assert not Path("report/recall.json").exists()


def test_a_benchmark_that_is_killed_or_prints_no_object_has_failed():
    kills_itself = "    os.kill(os.getpid(), signal.SIGKILL)\n"
    ran = suite(Noted(), recall=kills_itself, tiers="    print([1, 2])\n")
    ran.run(benchmarks("recall", "tiers"), Path("data"), quick=False)
    assert [outcome.why for outcome in ran.outcomes] == ["SIGKILL ended it", "it printed no result"]
    assert all(outcome.status is Status.FAILED for outcome in ran.outcomes)


def test_a_benchmark_without_its_question_set_is_skipped_and_nothing_is_started():
    ran = suite(Noted(), recall=MEASURES)
    ran.run([Benchmark("recall", "", ("tales",))], Path("nowhere"), quick=False)
    (outcome,) = ran.outcomes
    assert (outcome.status, outcome.seconds) == (Status.SKIPPED, 0.0)
    assert "nowhere/tales/questions.jsonl.gz is missing" in outcome.why
    assert f"Skipped: {outcome.why}." in report()
    assert not Path("arguments").exists()


def test_an_early_end_keeps_what_was_measured_and_ends_the_process():
    def end():
        # As a signal's handler does.
        raise SystemExit(130)

    ran = suite(watcher := Noted(ready=end), scheduling=MEASURES, replay=HANGS)
    with pytest.raises(SystemExit):
        ran.run(benchmarks("scheduling", "replay", "tiers"), Path("data"), quick=False)
    assert not runs(int(Path("pid").read_text()))
    measured, ended = ran.outcomes
    assert measured.status is Status.MEASURED
    assert (ended.status, ended.result["complete"]) == (Status.ENDED, False)
    assert json.loads(Path("report/replay.json").read_text())["ttft_ratio_unloaded"] == {"vllm": 2.0}
    assert "Not run so far: tiers." in report()
    assert "| mean TTFT without load, vllm over ours | 2.00 x |" in report()
    assert "it was ended before it was done" in report()
    assert [name for name, *_ in watcher.began_names] == ["scheduling", "replay"]


def test_the_report_is_there_while_a_benchmark_runs():
    seen = []

    def look():
        seen.append(report())
        os.kill(int(Path("pid").read_text()), 15)

    suite(Noted(ready=look), replay=HANGS).run(benchmarks("replay", "tiers"), Path("data"), quick=False)
    assert "Not run so far: replay, tiers." in seen[0]


def test_what_a_benchmark_has_started_does_not_outlive_it(monkeypatch):
    monkeypatch.setattr("ragtree_lab.suite.child._REMAINS_S", 0.2)
    engine = "'import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)'"
    leaves = f"    Path('pid').write_text(str(subprocess.Popen([sys.executable, '-c', {engine}]).pid))\n"
    suite(Noted(), scheduling=leaves + MEASURES).run(benchmarks("scheduling"), Path("data"), quick=False)
    assert not runs(int(Path("pid").read_text()))


def test_a_benchmark_that_does_not_end_is_killed(monkeypatch):
    monkeypatch.setattr("ragtree_lab.suite.child._PATIENCE_S", 0.2)

    def end():
        raise SystemExit(143)

    deaf = (
        "    signal.signal(signal.SIGTERM, signal.SIG_IGN)\n    Path('pid').write_text(str(os.getpid()))\n    hang()\n"
    )
    ran = suite(Noted(ready=end), tiers=deaf)
    with pytest.raises(SystemExit):
        ran.run(benchmarks("tiers"), Path("data"), quick=False)
    assert not runs(int(Path("pid").read_text()))
    assert (ran.outcomes[0].status, ran.outcomes[0].result) == (Status.ENDED, None)
