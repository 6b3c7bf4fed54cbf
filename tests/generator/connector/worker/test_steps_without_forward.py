"""Transfers start once in every step, also if vLLM leaves out ``wait_for_save`` in one that computes nothing."""

import pytest

pytest.importorskip("vllm")

from generator.connector import worker_connector
from generator.connector.connector import RagtreeConnector
from generator.connector.step_jobs import Purge, StepJobs
from protocol.tiers import Tier


class Worker:
    """Notes the jobs whose transfers were started."""

    def __init__(self) -> None:
        self.started: list[StepJobs] = []

    def load(self, jobs: StepJobs) -> None:
        pass

    def transfer(self, jobs: StepJobs) -> None:
        self.started.append(jobs)

    def compose(self, jobs: StepJobs) -> None:
        pass

    def pause(self, jobs: StepJobs) -> None:
        pass

    def take_loaded(self) -> set[str]:
        return set()


@pytest.fixture
def connector():
    """A connector without the engine that makes it."""
    connector = object.__new__(RagtreeConnector)
    connector._opened_worker_side = Worker()
    return connector


@pytest.mark.parametrize(("left_out", "computes"), [(False, True), (True, True), (True, False)])
def test_each_steps_transfers_start_once(connector, monkeypatch, left_out, computes):
    monkeypatch.setattr(worker_connector, "_SAVES_ONLY_AFTER_FORWARD", left_out)
    steps = [StepJobs(purges=[Purge(number, None, (Tier.HOST, Tier.DISK))]) for number in range(2)]
    for jobs in steps:
        connector.bind_connector_metadata(jobs)
        if computes:
            connector.wait_for_save()
        connector.get_finished(set())
    assert connector._opened_worker_side.started == steps
