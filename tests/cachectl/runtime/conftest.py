"""Controllers with one slot and a queue of one for each instance."""

import pytest
from controller_under_test import Clock, checked_controllers


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def build(clock):
    with checked_controllers(clock, policy="PGDSF", max_running=1, max_queued=1) as build:
        yield build


@pytest.fixture
def controller(build):
    return build()
