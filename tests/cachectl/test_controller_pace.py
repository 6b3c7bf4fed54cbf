"""How long plans are leased."""

import pytest
from controller_under_test import Clock, ask, costs

from cachectl.runtime.controller import Controller, Engines
from cachectl.settings import ControllerSettings
from cachectl.tiers.location import Capacities, KvStorage


@pytest.mark.parametrize("timeout_s", [1.0, 300.0, 5000.0])
async def test_leases_outlive_queries(timeout_s):
    clock = Clock()
    storage = KvStorage(Capacities(100))
    controller = Controller(ControllerSettings(), ["one"], clock, Engines(costs()), storage, query_timeout_s=timeout_s)
    await controller.admit(ask("query"))
    clock.now = 2 * timeout_s
    controller.expire_leases()
    assert not controller.idle
    clock.now = 4 * timeout_s
    controller.expire_leases()
    assert controller.idle
