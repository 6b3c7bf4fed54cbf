"""A document that was deleted is known for as long as somebody may still bring it."""

import pytest
from controller_under_test import Clock

from cachectl.runtime.tombstones import Tombstones


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def tombstones(clock):
    return Tombstones(clock, remembered_s=100.0)


def test_a_search_before_the_deletion_is_out_of_date_and_one_after_it_is_not(tombstones, clock):
    clock.now = 10.0
    tombstones.add(["a", "b"], "tenant")
    assert tombstones.any(["x", "b"], "tenant", searched_at=9.0)
    assert tombstones.any(["x", "b"], "tenant", searched_at=10.0)
    assert not tombstones.any(["x", "b"], "tenant", searched_at=10.1)
    assert not tombstones.any(["x"], "tenant", searched_at=9.0)
    assert not tombstones.any([], "tenant", searched_at=9.0)


def test_namespaces_are_told_apart_unless_it_was_deleted_in_all(tombstones):
    tombstones.add(["a"], "tenant")
    tombstones.add(["b"], None)
    assert not tombstones.any(["a"], "other", searched_at=0.0)
    assert tombstones.any(["b"], "other", searched_at=0.0)


def test_the_last_deletion_counts(tombstones, clock):
    tombstones.add(["a"], "tenant")
    clock.now = 50.0
    tombstones.add(["a"], "tenant")
    assert tombstones.any(["a"], "tenant", searched_at=45.0)


def test_what_nobody_can_bring_any_more_is_forgotten(tombstones, clock):
    for second in range(1000):
        clock.now = float(second)
        tombstones.add([str(second), "again"], "tenant")
    assert len(tombstones._deleted_at) == 101
    assert tombstones.any(["again"], "tenant", searched_at=950.0)
