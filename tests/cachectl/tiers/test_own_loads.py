"""What loads from an instance's own tiers take is learnt from loads."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachectl.tiers.own_loads import OwnLoads
from protocol.tiers import Tier

HOST, DISK = Tier.HOST, Tier.DISK
TOKEN_S = 1e-6


def copy_s(tokens: int, tier: Tier) -> float:
    return tokens * TOKEN_S


def learnt(seconds_of, lengths: list[int], rounds: int = 20) -> OwnLoads:
    """Loads from the disk whose requests have waited for ``seconds_of(tokens)``, in rounds over these lengths."""
    loads = OwnLoads(copy_s)
    for _ in range(rounds):
        for tokens in lengths:
            loads.measured("one", DISK, tokens, seconds_of(tokens))
    return loads


def test_until_loads_are_measured_they_take_what_their_bytes_take():
    loads = learnt(lambda tokens: 1.0, [100])
    assert (loads.constant_s("one", HOST), loads.seconds("one", 1000, HOST)) == (0.0, 1000 * TOKEN_S)
    loads.forget("one", DISK)
    assert (loads.constant_s("one", DISK), loads.seconds("one", 1000, DISK)) == (0.0, 1000 * TOKEN_S)


def test_loads_are_free_where_nothing_says_what_they_take():
    loads = OwnLoads()
    loads.measured("one", DISK, 100, 1.0)
    assert (loads.constant_s("one", DISK), loads.seconds("one", 100, DISK)) == (0.0, 0.0)


@pytest.mark.parametrize("lengths", [[352], [352, 2048], [8, 100, 500, 4000]])
def test_what_every_load_takes_is_a_constant(lengths):
    loads = learnt(lambda tokens: 0.005 + tokens * TOKEN_S, lengths)
    assert loads.constant_s("one", DISK) == pytest.approx(0.005)
    assert loads.seconds("one", 2000, DISK) == pytest.approx(2000 * TOKEN_S)


def test_a_tier_slower_than_its_rate_takes_longer_for_each_token():
    loads = learnt(lambda tokens: 0.001 + 5 * tokens * TOKEN_S, [500, 2000, 8000])
    assert loads.seconds("one", 4000, DISK) == pytest.approx(5 * 4000 * TOKEN_S)
    assert loads.constant_s("one", DISK) == pytest.approx(0.001)


def test_the_latest_loads_weigh_most():
    loads = learnt(lambda tokens: 0.1, [500])
    for _ in range(40):
        loads.measured("one", DISK, 500, 0.002 + 500 * TOKEN_S)
    assert loads.constant_s("one", DISK) == pytest.approx(0.002)


def test_a_stall_says_nothing():
    loads = learnt(lambda tokens: 10.0, [500], 2)
    assert loads.constant_s("one", DISK) == 0.0
    loads = learnt(lambda tokens: 0.002 + tokens * TOKEN_S, [352, 2048])
    loads.measured("one", DISK, 8000, 10.0)
    assert loads.constant_s("one", DISK) == pytest.approx(0.002)
    assert loads.seconds("one", 1000, DISK) == pytest.approx(1000 * TOKEN_S)


def test_loads_faster_than_the_rate_show_their_constant():
    loads = learnt(lambda tokens: 0.005 + tokens * TOKEN_S / 4, [352, 500, 2000, 8000])
    assert loads.constant_s("one", DISK) == pytest.approx(0.005)
    assert loads.seconds("one", 1000, DISK) == 1000 * TOKEN_S


def test_each_instance_is_judged_by_its_own_loads():
    loads = learnt(lambda tokens: 1.0, [100])
    assert (loads.constant_s("other", DISK), loads.seconds("other", 1000, DISK)) == (0.0, 1000 * TOKEN_S)


@given(st.lists(st.tuples(st.integers(1, 10_000), st.floats(0, 1)), min_size=1, max_size=30), st.integers(0, 10_000))
def test_no_load_is_expected_sooner_than_its_bytes(measured, tokens):
    loads = OwnLoads(copy_s)
    for length, seconds in measured:
        loads.measured("one", DISK, length, seconds)
    assert loads.constant_s("one", DISK) >= 0
    assert loads.seconds("one", tokens, DISK) >= copy_s(tokens, DISK)
