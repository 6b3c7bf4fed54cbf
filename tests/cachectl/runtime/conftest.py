"""Controllers with one slot and a queue of one for each instance, and such that follow instances."""

import pytest
from controller_under_test import Clock, checked_controllers

from cachectl.runtime.live_controller import LiveController
from cachectl.settings import ControllerSettings
from cachectl.tree.snapshot import EMPTY_SNAPSHOT


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


@pytest.fixture
def start(tmp_path):
    async def start(fleet, clock=lambda: 0.0, snapshot=EMPTY_SNAPSHOT, **settings: object) -> LiveController:
        limits = ControllerSettings(**{"policy": "LRU", "max_running": 1, "prepare_after_s": None} | settings)
        live = LiveController(limits, fleet, tmp_path, clock, lambda: 0.0)
        await live.start(lambda done, total: None, snapshot)
        return live

    return start
