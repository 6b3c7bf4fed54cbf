"""Branches' KV: found behind the same ancestors and front alone, leaves leave first, and deletions end it."""

import pytest
import torch

from generator.composing.dependency.branch_cache import BranchCache, BranchKv, Front
from protocol.dependency import Branch, TreePositions

FRONT = Front("tenant", (1, 2, 3))
BRANCHES = (Branch(1, -1), Branch(1, 0), Branch(1, 1), Branch(1, -1))
TOKENS = [(10,), (11,), (12,), (20,)]
SIZE = 2 * 4 * 4
"""Bytes of a branch in these tests."""


def kv(position: int) -> BranchKv:
    """Keys and values of one token, two layers, and one head of two numbers."""
    return BranchKv(torch.full((2, 1, 1, 2), float(position)), torch.zeros(2, 1, 1, 2), position)


def filled(size: int = 100 * SIZE) -> BranchCache:
    cache = BranchCache(size)
    cache.add(FRONT, BRANCHES, TOKENS, [kv(position) for position in range(4)], 0)
    return cache


def found(cache: BranchCache, front: Front = FRONT, tokens=TOKENS, branches=BRANCHES) -> list[int | None]:
    """The positions of the branches' KV."""
    return [None if one is None else one.position for one in cache.find(front, branches, tokens)]


def test_branches_are_found_behind_their_ancestors_alone():
    cache = filled()
    assert found(cache) == [0, 1, 2, 3]
    assert found(cache, tokens=[(10,), (99,), (12,), (20,)]) == [0, None, None, 3]
    assert found(cache, tokens=[(99,), (11,), (12,), (20,)]) == [None, None, None, 3]
    assert found(cache, branches=(Branch(1, -1), Branch(1, -1), Branch(1, 1), Branch(1, -1))) == [0, None, None, 3]


@pytest.mark.parametrize(
    "front",
    [
        Front("another tenant", (1, 2, 3)),
        Front("tenant", (1, 2)),
        Front("tenant", (1, 2, 3), TreePositions.PREORDER),
    ],
)
def test_another_front_has_none(front):
    assert found(filled(), front) == [None] * 4


def test_what_is_kept_already_stays_and_what_is_new_is_added_behind_it():
    cache = filled()
    branches = (Branch(1, -1), Branch(1, 0), Branch(1, 0))
    tokens = [(10,), (11,), (13,)]
    cache.add(FRONT, branches, tokens, [None, None, kv(7)], 0)
    assert found(cache, tokens=tokens, branches=branches) == [0, 1, 7]


def test_leaves_of_the_longest_unused_trees_leave_first():
    cache = filled(4 * SIZE)
    found(cache, tokens=TOKENS[:1], branches=BRANCHES[:1])
    cache.add(FRONT, BRANCHES[:1], [(30,)], [kv(9)], 0)
    # The leaf of the long path and the other tree were used equally long ago; the root was used since.
    assert found(cache)[:2] == [0, 1]
    assert found(cache).count(None) == 1
    for number in range(40, 44):
        cache.add(FRONT, BRANCHES[:1], [(number,)], [kv(number)], 0)
    assert found(cache) == [None] * 4


def test_it_never_keeps_more_than_its_size():
    cache = filled(2 * SIZE)
    assert found(cache).count(None) == 2
    assert found(cache)[0] is not None or found(cache)[3] is not None
    assert found(filled(0)) == [None] * 4


def test_a_deletion_drops_its_namespaces_and_what_is_computed_meanwhile():
    cache = filled()
    other = Front("other", (1,))
    cache.add(other, BRANCHES, TOKENS, [kv(position) for position in range(4)], 0)
    cache.forget(lambda namespace: namespace == "tenant")
    assert found(cache) == [None] * 4
    assert found(cache, other) == [0, 1, 2, 3]
    cache.add(FRONT, BRANCHES, TOKENS, [kv(position) for position in range(4)], 0)
    assert found(cache) == [None] * 4
    cache.add(FRONT, BRANCHES, TOKENS, [kv(position) for position in range(4)], cache.deletions)
    assert found(cache) == [0, 1, 2, 3]


def test_room_is_given_back():
    cache = filled(4 * SIZE)
    for _ in range(3):
        cache.forget(lambda _: True)
        cache.add(FRONT, BRANCHES, TOKENS, [kv(position) for position in range(4)], cache.deletions)
        assert found(cache) == [0, 1, 2, 3]
