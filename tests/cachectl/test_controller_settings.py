"""The controller's section of the configuration."""

import pytest
from controller_integrity import check_integrity
from controller_under_test import Clock, costs
from pydantic import ValidationError

from cachectl.runtime.controller import Controller, Engines
from cachectl.settings import ControllerSettings
from cachectl.tiers.location import Capacities, KvStorage
from protocol.errors import ConfigError
from protocol.tiers import Tier

GPU, HOST, DISK = Tier


@pytest.mark.parametrize(
    "wrong",
    [
        {"policy": "MRU"},
        {"policy": "pgdsf"},
        {"swap": "twice"},
        {"reorder_window": -1},
        {"max_running": 0},
        {"max_queued": -1},
        {"max_prefill_bs": -1},
        {"max_waiting": 1},
    ],
    ids=str,
)
def test_invalid_settings_are_refused(wrong):
    with pytest.raises((ValidationError, ConfigError)) as caught:
        ControllerSettings(**wrong)
    assert next(iter(wrong)) in str(caught.value)


def test_the_default_settings_make_a_controller():
    check_integrity(Controller(ControllerSettings(), ["one"], Clock(), Engines(costs()), KvStorage(Capacities(0))))
