"""Tasks run at once in processes of their own, and none is left."""

import multiprocessing
import os
from functools import partial

import pytest

from protocol.errors import InternalError
from ragtree_lab.controller.processes import Report, in_processes


def number_and_process(number: int, report: Report) -> tuple[int, int]:
    report.advance(number)
    # Ends only if all tasks run at once.
    report.meet()
    return number, os.getpid()


def dies(report: Report) -> None:
    report.advance(1)
    os._exit(3)


def waits_for_others(report: Report) -> None:
    report.meet()


@pytest.fixture(autouse=True)
def none_left():
    """No process outlives a test. Those of other tests' engines were there before."""
    before = {*multiprocessing.active_children()}
    yield
    assert {*multiprocessing.active_children()} <= before


def test_results_come_in_order_from_processes_of_their_own():
    advanced: list[int] = []
    results = in_processes([partial(number_and_process, number) for number in (5, 6)], advanced.append)
    assert [number for number, _ in results] == [5, 6]
    assert len({os.getpid(), *(process for _, process in results)}) == 3
    assert sorted(advanced) == [5, 6]


def test_a_process_that_dies_is_reported_and_the_others_end():
    with pytest.raises(InternalError, match="ended before its task was done"):
        in_processes([waits_for_others, dies], lambda _: None)
