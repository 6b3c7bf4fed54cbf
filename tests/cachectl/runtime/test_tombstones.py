"""Tombstones: deletions are remembered for as long as an older search may bring the document."""

import pytest
from controller_under_test import Clock

from cachectl.runtime.tombstones import Tombstones


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def tombstones(clock):
    return Tombstones(clock, remembered_s=100.0)


def test_a_search_is_outdated_if_it_began_before_the_deletion(tombstones, clock):
    clock.now = 10.0
    tombstones.add(["a", "b"], "tenant")
    assert tombstones.any(["x", "b"], "tenant", searched_at=9.0)
    assert tombstones.any(["x", "b"], "tenant", searched_at=10.0)
    assert not tombstones.any(["x", "b"], "tenant", searched_at=10.1)
    assert not tombstones.any(["x"], "tenant", searched_at=9.0)
    assert not tombstones.any([], "tenant", searched_at=9.0)


def test_a_deletion_counts_in_its_namespace_or_in_all(tombstones):
    tombstones.add(["a"], "tenant")
    tombstones.add(["b"], None)
    assert not tombstones.any(["a"], "other", searched_at=0.0)
    assert tombstones.any(["b"], "other", searched_at=0.0)


def test_the_last_deletion_counts(tombstones, clock):
    tombstones.add(["a"], "tenant")
    clock.now = 50.0
    tombstones.add(["a"], "tenant")
    assert tombstones.any(["a"], "tenant", searched_at=45.0)


def test_old_deletions_are_forgotten(tombstones, clock):
    for second in range(1000):
        clock.now = float(second)
        tombstones.add([str(second), "again"], "tenant")
    assert len(tombstones._deleted_at) == 101
    assert tombstones.any(["again"], "tenant", searched_at=950.0)
