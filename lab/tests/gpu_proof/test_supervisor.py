"""The supervisor reports every check, whatever happens to the process that runs it."""

import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from examine.doctor.outcome import Status
from ragtree_lab.gpu_proof.groups import Check, Group
from ragtree_lab.gpu_proof.results import CheckResult
from ragtree_lab.gpu_proof.supervisor import Supervisor

ROOT = Path(__file__).parents[3]
WORKER = Path(__file__).with_name("scripted_process.py")
LONG_S, SHORT_S = 60.0, 1.0


def check(call: str, limit_s: float = LONG_S, required: bool = False) -> Check:
    return Check(f"to {call}", call, limit_s, required=required)


class Run:
    """Runs a group whose checks do as they are called, and notes what is reported."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.results: list[CheckResult] = []
        self.begun: list[str] = []

    def __call__(self, *checks: Check, budget_s: float = LONG_S, start_s: float = 5.0) -> list[str]:
        supervisor = Supervisor(
            lambda task: [sys.executable, str(WORKER), str(task)],
            self._folder,
            self._folder,
            time.monotonic() + budget_s,
            self.results.append,
            self.begun.append,
        )
        group = Group("a group", 2, "scripted", {"folder": str(self._folder)}, start_s, list(checks))
        supervisor.run(group)
        assert [result.name for result in self.results] == [check.name for check in checks]
        return [str(result.status) for result in self.results]

    def assert_nothing_runs(self) -> None:
        """Assert that the process that a check started has ended, or is ending."""
        (file,) = self._folder.rglob("child")
        with suppress(psutil.NoSuchProcess):
            child = psutil.Process(int(file.read_text()))
            # It was killed; whoever inherits it may take a while to notice.
            if child.status() != psutil.STATUS_ZOMBIE:
                child.wait(LONG_S)


@pytest.fixture
def run(tmp_path, monkeypatch):
    # The scripted process is a file of the tests and imports the project.
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    return Run(tmp_path)


def test_all_checks_of_a_process_are_reported_as_they_end(run):
    assert run(check("pass"), check("pass"), check("pass")) == ["passed"] * 3
    assert run.begun == ["to pass"] * 3
    assert {result.figure for result in run.results} == {"process-1"}


def test_a_check_that_fails_leaves_the_others_to_another_process(run):
    assert run(check("pass"), check("fail"), check("pass")) == ["passed", "failed", "passed"]
    assert [result.figure for result in run.results] == ["process-1", "", "process-2"]


@pytest.mark.parametrize(
    ("call", "why"), [("crash", "exit status 3: a last word"), ("kill", "exit status -9: a last word")]
)
def test_a_check_whose_process_ends_has_failed(run, call, why):
    assert run(check("pass"), check(call), check("pass")) == ["passed", "failed", "passed"]
    assert why in run.results[1].why


def test_a_process_that_ends_between_two_checks_fails_the_next_one(run):
    assert run(check("pass then crash"), check("pass"), check("pass")) == ["passed", "failed", "passed"]


def test_a_check_that_hangs_is_ended_with_all_that_it_started(run):
    assert run(check("pass"), check("hang", SHORT_S), check("pass")) == ["passed", "failed", "passed"]
    assert "longer than 1 s" in run.results[1].why
    run.assert_nothing_runs()


def test_a_process_that_hangs_before_its_first_check_is_ended(run):
    assert run(check("hang at the start", SHORT_S), start_s=0.5) == ["failed"]


def test_what_needs_a_failed_check_is_left_out(run):
    assert run(check("fail", required=True), check("pass")) == ["failed", "skipped"]
    assert run.results[1].why == "to fail failed"


def test_what_no_longer_fits_into_the_time_is_left_out(run):
    assert run(check("pass"), check("hang"), check("pass"), budget_s=3.0, start_s=0.0) == [
        "passed",
        "skipped",
        "skipped",
    ]
    assert run.results[1].why == "the time of the whole run is over"


def test_a_process_is_not_started_without_the_time_for_it(run):
    assert run(check("pass"), budget_s=3.0, start_s=9.0) == ["skipped"]
    assert run.results[0].why == "no time is left for it"
    assert run.begun == []


def test_a_process_that_does_not_end_after_its_checks_is_ended(run, monkeypatch):
    monkeypatch.setattr("ragtree_lab.gpu_proof.supervisor._CLOSE_S", 0.5)
    assert run(check("pass then hang")) == ["passed"]
    run.assert_nothing_runs()


def test_statuses_are_words(run):
    assert run(check("pass")) == [Status.PASSED]
