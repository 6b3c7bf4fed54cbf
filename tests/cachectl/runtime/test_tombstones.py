"""Tombstones: what was found before a deletion is told from what was found after it, by revisions of the store."""

import itertools

import pytest

from cachectl.runtime import tombstones as module
from cachectl.runtime.tombstones import Tombstones
from protocol.retrieval import StoreRevision


@pytest.fixture
def tombstones():
    return Tombstones()


def at(number: int, store: str = "store") -> tuple[StoreRevision]:
    return (StoreRevision(store, number),)


def test_what_was_found_before_the_deletion_is_outdated(tombstones):
    tombstones.add(["a", "b"], "tenant", *at(10))
    assert tombstones.any(["x", "b"], "tenant", at(9))
    assert not tombstones.any(["x", "b"], "tenant", at(10)), "stored again since"
    assert not tombstones.any(["x"], "tenant", at(9))
    assert not tombstones.any([], "tenant", at(9))
    assert not tombstones.any([], "tenant", ()), "a prompt without documents"


def test_what_was_found_at_no_revision_is_outdated(tombstones):
    assert not tombstones.any(["a"], "tenant", ())
    tombstones.add(["a"], "tenant", *at(10))
    assert tombstones.any(["a"], "tenant", ())


def test_a_deletion_counts_in_its_namespace_or_in_all(tombstones):
    tombstones.add(["a"], "tenant", *at(1))
    tombstones.add(["b"], None, *at(2))
    assert not tombstones.any(["a"], "other", at(0))
    assert tombstones.any(["b"], "other", at(0))


def test_the_last_deletion_counts_whatever_order_they_come_in(tombstones):
    tombstones.add(["a"], "tenant", *at(10))
    tombstones.add(["a"], "tenant", *at(50))
    tombstones.add(["a"], "tenant", *at(10))
    assert tombstones.any(["a"], "tenant", at(45))


def test_a_search_of_several_stores_is_judged_by_each(tombstones):
    tombstones.add(["a"], "tenant", *at(3, "east"))
    assert tombstones.any(["a"], "tenant", at(2, "east") + at(90, "west"))
    assert not tombstones.any(["a"], "tenant", at(3, "east") + at(0, "west"))


def test_a_search_without_the_store_of_the_deletion_is_outdated(tombstones):
    tombstones.any(["a"], "tenant", at(90, "west"))
    tombstones.add(["a"], "tenant", *at(3, "east"))
    assert tombstones.any(["a"], "tenant", at(90, "west"))


def test_a_new_store_in_the_place_of_another(tombstones):
    tombstones.add(["a"], "tenant", *at(7, "old"))
    assert not tombstones.any(["a"], "tenant", at(0, "new")), "the old store's deletions say nothing of it"
    tombstones.add(["a"], "tenant", *at(1, "new"))
    assert tombstones.any(["a"], "tenant", at(0, "new"))
    assert tombstones.any(["a"], "tenant", at(50, "old")), "the old store's searches are no newer"


def test_only_so_many_deletions_are_remembered_and_searches_before_the_others_are_outdated(tombstones, monkeypatch):
    monkeypatch.setattr(module, "_REMEMBERED", 100)
    for number in range(1, 1001):
        tombstones.add([str(number)], "tenant", *at(number))
    assert len(tombstones.deletions()) == 100
    assert tombstones.forgotten == at(900)
    assert tombstones.any(["never deleted"], "tenant", at(899))
    assert not tombstones.any(["never deleted"], "tenant", at(900))
    assert tombstones.any(["901"], "tenant", at(900))
    assert not tombstones.any(["1"], "tenant", at(900))
    assert not tombstones.any(["1"], "tenant", at(0, "new"))


def test_a_successor_knows_the_same_and_believes_no_other_store(tombstones, monkeypatch):
    monkeypatch.setattr(module, "_REMEMBERED", 2)
    for number, content in enumerate("xab", start=1):
        tombstones.add([content], "tenant", *at(number))
    successor = Tombstones()
    successor.recall(tombstones.deletions(), tombstones.forgotten)
    assert (successor.deletions(), successor.forgotten) == (tombstones.deletions(), tombstones.forgotten)
    for content, number in itertools.product("xabc", range(5)):
        expected = tombstones.any([content], "tenant", at(number))
        assert successor.any([content], "tenant", at(number)) is expected
    assert successor.any(["a"], "tenant", at(90, "elder"))
