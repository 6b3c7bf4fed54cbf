"""Branches' KV: found by key, kept behind its parent alone, dropped as told, and gone after deletions."""

import torch

from generator.composing.dependency.branch_cache import BranchCache, BranchKv, ComputedBranch

PATH = ["film", "by", "director"]
PARENTS = {"film": None, "by": "film", "director": "by", "city": None}
KEYS = list(PARENTS)
SIZE = 2 * 4 * 4
"""Bytes of a branch in these tests."""


def kv(position: int) -> BranchKv:
    """Keys and values of one token, two layers, and one head of two numbers."""
    return BranchKv(torch.full((2, 1, 1, 2), float(position)), torch.zeros(2, 1, 1, 2), position)


STATED_BY = {"film": ("a", "b"), "by": ("a",), "director": ("a",), "city": ("b",)}


def computed(keys=KEYS, parents=PARENTS, namespace="", stated_by=STATED_BY) -> list[ComputedBranch]:
    return [
        ComputedBranch(
            _key(key, namespace), parents[key] and _key(parents[key], namespace), stated_by[key], kv(position)
        )
        for position, key in enumerate(keys)
    ]


def deleting(*contents: str, namespace: str = "tenant"):
    """Asked by a deletion of these chunks in a namespace, or of everything there if none is named."""
    return lambda asked, path: asked == namespace and (not contents or not set(contents).isdisjoint(path))


def _key(name: str, namespace: str) -> bytes:
    return f"{namespace}{name}".encode()


def root(name: str, position: int = 9) -> list[ComputedBranch]:
    return [ComputedBranch(name.encode(), None, (), kv(position))]


def filled(size: int = 100 * SIZE) -> BranchCache:
    cache = BranchCache(size)
    cache.add("tenant", computed(), 0)
    return cache


def found(cache: BranchCache, keys=KEYS, namespace="") -> list[int | None]:
    """The positions of the branches' KV."""
    return [None if one is None else one.position for one in cache.find([_key(key, namespace) for key in keys])]


def test_branches_are_found_by_key():
    assert found(filled()) == [0, 1, 2, 3]
    assert found(filled(), ["film", "unknown"]) == [0, None]


def test_a_branch_without_its_parent_is_not_kept():
    cache = BranchCache(100 * SIZE)
    cache.add("tenant", computed(["by", "director", "city"]), 0)
    assert found(cache) == [None, None, None, 2]


def test_what_is_kept_already_stays_and_what_is_new_is_added_behind_it():
    cache = filled()
    new = [
        ComputedBranch(b"film", None, (), None),
        ComputedBranch(b"year", b"film", (), kv(7)),
        *root("city", 8),
    ]
    cache.add("tenant", new, 0)
    assert found(cache, [*KEYS, "year"]) == [0, 1, 2, 3, 7]


def test_what_a_plan_names_is_dropped_with_what_is_below_it():
    cache = filled(4 * SIZE)
    cache.drop([b"by", b"director", b"unknown"])
    assert found(cache) == [0, None, None, 3]
    for name in ("one", "two"):
        cache.add("tenant", root(name), 0)
    # There was room for both.
    assert found(cache, [*KEYS, "one", "two"]) == [0, None, None, 3, 9, 9]


def test_a_branch_that_was_dropped_is_kept_again():
    cache = filled(4 * SIZE)
    cache.drop([b"film"])
    cache.add("tenant", computed(), 0)
    assert found(cache) == [0, 1, 2, 3]


def test_without_room_the_leaves_that_are_unused_for_longest_leave_first():
    cache = filled(4 * SIZE)
    found(cache, ["film"])
    cache.add("tenant", root("one"), 0)
    # The leaf of the path and the other tree were used equally long ago; the root was used since.
    assert found(cache)[:2] == [0, 1]
    assert found(cache).count(None) == 1
    for number in range(4):
        cache.add("tenant", root(f"root {number}"), 0)
    assert found(cache) == [None] * 4


def test_it_never_keeps_more_than_its_size():
    cache = filled(2 * SIZE)
    assert found(cache).count(None) == 2
    assert found(cache)[0] is not None or found(cache)[3] is not None
    assert found(filled(0)) == [None] * 4


def test_a_deletion_drops_what_no_other_chunk_states():
    cache = filled()
    cache.forget(deleting("a"))
    assert found(cache) == [0, None, None, 3]
    cache.forget(deleting("b"))
    assert found(cache) == [None] * 4


def test_a_deletion_drops_what_is_below_although_other_chunks_state_it():
    cache = BranchCache(100 * SIZE)
    cache.add("tenant", computed(stated_by=STATED_BY | {"director": ("a", "b")}), 0)
    cache.forget(deleting("a"))
    assert found(cache) == [0, None, None, 3]


def test_a_later_prompt_may_state_a_kept_branch_by_another_chunk():
    cache = filled()
    cache.add("tenant", [ComputedBranch(b"film", None, ("c",), None), ComputedBranch(b"by", b"film", ("c",), None)], 0)
    cache.forget(deleting("a", "b"))
    assert found(cache) == [0, 1, None, None]


def test_what_no_chunk_states_is_the_prompts_own_and_stays():
    cache = filled()
    cache.add("tenant", root("Facts:"), 0)
    cache.forget(deleting("a", "b"))
    assert found(cache, ["Facts:"]) == [9]
    cache.forget(deleting())
    assert found(cache, ["Facts:"]) == [None]


def test_a_deletion_of_everything_drops_its_namespaces_and_what_is_computed_meanwhile():
    cache = filled()
    cache.add("other", computed(namespace="other"), 0)
    cache.forget(deleting())
    assert found(cache) == [None] * 4
    assert found(cache, namespace="other") == [0, 1, 2, 3]
    cache.add("tenant", computed(), 0)
    assert found(cache) == [None] * 4
    cache.add("tenant", computed(), cache.deletions)
    assert found(cache) == [0, 1, 2, 3]


def test_room_is_given_back():
    cache = filled(4 * SIZE)
    for _ in range(3):
        cache.forget(deleting())
        cache.add("tenant", computed(), cache.deletions)
        assert found(cache) == [0, 1, 2, 3]
