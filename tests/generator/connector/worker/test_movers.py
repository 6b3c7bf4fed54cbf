"""Disk writes do not delay copies to host memory, but a job waits for earlier ones that touch the same things."""

import threading
from collections.abc import Callable

import pytest

from generator.connector.worker.tier_jobs import Movers

PATIENCE_S = 10.0


class Jobs:
    """Jobs that record their ends, and that a test can hold back."""

    def __init__(self) -> None:
        self.ended: list[str] = []
        self._changed = threading.Condition()

    def named(self, name: str, held_back_by: threading.Event | None = None) -> Callable[[], None]:
        def run() -> None:
            assert held_back_by is None or held_back_by.wait(PATIENCE_S)
            with self._changed:
                self.ended.append(name)
                self._changed.notify_all()

        return run

    def wait_for(self, *names: str) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: set(names) <= set(self.ended), PATIENCE_S), self.ended


@pytest.fixture
def jobs() -> Jobs:
    return Jobs()


@pytest.fixture
def movers():
    movers = Movers(lambda: None)
    yield movers
    movers.close()


@pytest.fixture
def disk_is_free():
    event = threading.Event()
    yield event
    event.set()


def test_a_slow_disk_does_not_delay_host_memory(movers, jobs, disk_is_free):
    movers.submit(jobs.named("disk", disk_is_free), ("a", 1), uses_disk=True)
    movers.submit(jobs.named("host"), ("b", 2), uses_disk=False)
    jobs.wait_for("host")
    assert jobs.ended == ["host"]


@pytest.mark.parametrize("things", [("a", 7), ("b", 1), ("a", 1)])
def test_a_job_waits_for_an_earlier_one_that_touches_the_same_node_or_page(movers, jobs, disk_is_free, things):
    movers.submit(jobs.named("disk", disk_is_free), ("a", 1), uses_disk=True)
    movers.submit(jobs.named("host"), things, uses_disk=False)
    movers.submit(jobs.named("more disk"), ("c",), uses_disk=True)
    disk_is_free.set()
    jobs.wait_for("disk", "host", "more disk")
    assert jobs.ended.index("disk") < jobs.ended.index("host")


def test_a_job_alone_runs_between_all_earlier_and_all_later_ones(movers, jobs, disk_is_free):
    movers.submit(jobs.named("disk", disk_is_free), ("a",), uses_disk=True)
    movers.submit(jobs.named("host"), ("b",), uses_disk=False)
    movers.submit_alone(jobs.named("alone"))
    movers.submit(jobs.named("later host"), ("c",), uses_disk=False)
    movers.submit(jobs.named("later disk"), ("d",), uses_disk=True)
    jobs.wait_for("host")
    assert jobs.ended == ["host"]
    disk_is_free.set()
    jobs.wait_for("later host", "later disk")
    assert jobs.ended[:3] == ["host", "disk", "alone"]


def test_closing_drops_what_has_not_begun(jobs, disk_is_free):
    movers = Movers(lambda: None)
    begun = threading.Event()

    def begin() -> None:
        begun.set()
        disk_is_free.wait(PATIENCE_S)

    movers.submit(begin, ("a",), uses_disk=True)
    movers.submit(jobs.named("behind it"), ("a",), uses_disk=False)
    movers.submit_alone(jobs.named("alone"))
    assert begun.wait(PATIENCE_S)
    closing = threading.Thread(target=movers.close)
    closing.start()
    disk_is_free.set()
    closing.join(PATIENCE_S)
    assert not closing.is_alive()
