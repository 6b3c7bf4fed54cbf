"""Starting Ray, with ``ray.init`` replaced: a real start is part of every stack's test."""

import subprocess

import psutil
import pytest
import ray

from services.stack.ray_start import start_ray
from services.stack.run_state import StartFailed


class FailingRay:
    """Fails a number of times, and leaves a process each time, as Ray does."""

    def __init__(self, failures: int) -> None:
        self.calls: list[dict[str, object]] = []
        self.left: list[int] = []
        self._failures = failures

    def init(self, **options: object) -> None:
        self.calls.append(options)
        if len(self.calls) <= self._failures:
            self.left.append(subprocess.Popen(["sleep", "1000"]).pid)
            raise Exception("The current node timed out during startup.")


def test_a_start_that_fails_is_repeated_without_what_it_left(monkeypatch):
    failing = FailingRay(failures=1)
    monkeypatch.setattr(ray, "init", failing.init)
    start_ray({"num_cpus": 3})
    assert len(failing.calls) == 2
    assert failing.calls[0] == failing.calls[1]
    assert failing.calls[0]["num_cpus"] == 3
    assert not psutil.pid_exists(failing.left[0])


def test_a_second_failure_says_what_ray_said_and_where_its_logs_are(monkeypatch):
    failing = FailingRay(failures=2)
    monkeypatch.setattr(ray, "init", failing.init)
    with pytest.raises(StartFailed, match=r"timed out during startup.*logs"):
        start_ray({})
    psutil.Process(failing.left[1]).kill()
