"""The controller's pace."""

import pytest

from cachectl.pace import Pace
from gateway.settings import GatewaySettings


@pytest.mark.parametrize("timeout_s", [1.0, 300.0, 5000.0])
def test_leases_outlive_queries_and_so_does_the_memory_of_a_deletion(timeout_s):
    assert Pace.of_queries(timeout_s).lease_s > timeout_s


def test_the_pace_is_that_of_queries_with_the_default_timeout():
    assert Pace.of_queries(GatewaySettings().query_timeout_s) == Pace()
