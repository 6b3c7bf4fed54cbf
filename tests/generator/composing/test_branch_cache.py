"""Branches' KV: found by key, kept behind its parent alone, dropped as told, and gone after deletions."""

import random

import pytest
import torch

from generator.composing.attention_layers import LayerKv
from generator.composing.dependency.branch_cache import BranchCache, PromptBranch, TokenKv

PATH = ["film", "by", "director"]
PARENTS = {"film": None, "by": "film", "director": "by", "city": None}
KEYS = list(PARENTS)
TOKENS = {"film": 2, "by": 1, "director": 3, "city": 2}
ALL = sum(TOKENS.values())
LATER = 1000.0
"""How much larger the numbers of a layer are than those of the one before it."""

STATED_BY = {"film": ("a", "b"), "by": ("a",), "director": ("a",), "city": ("b",)}


def memory(tokens: int) -> TokenKv:
    """Memory for two layers, of one head each."""
    return TokenKv(tuple(LayerKv(torch.empty(tokens, 1, 2), torch.empty(tokens, 1, 3)) for _ in range(2)))


def kv(tokens: int, first: float) -> TokenKv:
    """Each token of a prompt has its own numbers, in each layer."""
    numbers = first + torch.arange(tokens).view(tokens, 1, 1)
    of_layers = (numbers + LATER * layer for layer in range(2))
    return TokenKv(tuple(LayerKv(of.expand(tokens, 1, 2), -of.expand(tokens, 1, 3)) for of in of_layers))


def add(cache: BranchCache, branches: list[PromptBranch], deletions: int = 0, first: float = 0.0) -> None:
    """Keep a prompt's branches in its namespace, whose computed tokens have numbers from ``first`` on."""
    cache.add("tenant", branches, kv(sum(len(branch.tokens) for branch in branches), first), deletions)


def computed(keys=KEYS, parents=PARENTS, namespace="", stated_by=STATED_BY) -> list[PromptBranch]:
    """Branches that were computed, with their places among ``keys`` for positions."""
    branches = []
    done = 0
    for position, key in enumerate(keys):
        above = parents[key] and _key(parents[key], namespace)
        tokens = range(done, done + TOKENS[key])
        branches.append(PromptBranch(_key(key, namespace), above, stated_by[key], position, tokens))
        done = tokens.stop
    return branches


def deleting(*contents: str, namespace: str = "tenant"):
    """Asked by a deletion of these chunks in a namespace, or of everything there if none is named."""
    return lambda asked, path: asked == namespace and (not contents or not set(contents).isdisjoint(path))


def _key(name: str, namespace: str) -> bytes:
    return f"{namespace}{name}".encode()


def root(name: str, position: int = 9) -> list[PromptBranch]:
    """A tree of one branch, of two tokens."""
    return [PromptBranch(name.encode(), None, (), position, range(2))]


def filled(tokens: int = 100 * ALL) -> BranchCache:
    cache = BranchCache(memory(tokens))
    add(cache, computed())
    return cache


def found(cache: BranchCache, keys=KEYS, namespace="") -> list[int | None]:
    """The branches' positions."""
    return [None if one is None else one.position for one in cache.find([_key(key, namespace) for key in keys])]


def test_branches_are_found_by_key():
    assert found(filled()) == [0, 1, 2, 3]
    assert found(filled(), ["film", "unknown"]) == [0, None]


def read(cache: BranchCache, *names: str) -> list[float]:
    """The numbers of branches' tokens in the first layer. Keys have them, values are negative."""
    kept = [one for one in cache.find([name.encode() for name in names]) if one is not None]
    assert len(kept) == len(names)
    layers = cache.read(kept).layers
    numbers = layers[0].keys[:, 0, 0]
    for place, (keys, values) in enumerate(layers):
        expected = (numbers + LATER * place).view(-1, 1, 1)
        assert torch.equal(keys, expected.expand_as(keys))
        assert torch.equal(values, -expected.expand_as(values))
    return numbers.tolist()


def test_what_was_computed_is_read():
    assert read(filled(), "film", "by", "director", "city") == [0, 1, 2, 3, 4, 5, 6, 7]
    assert read(filled(), "city", "by") == [6, 7, 2]


def test_memory_that_was_given_back_is_written_again():
    cache = filled(ALL)
    for first in (100.0, 200.0):
        cache.drop([b"by", b"one"])
        add(cache, root("one"), first=first)
        assert read(cache, "one", "city", "film") == [first, first + 1, 6, 7, 0, 1]


def test_what_was_found_is_there_until_something_is_added():
    cache = filled(ALL)
    kept = [one for one in cache.find([b"city"]) if one is not None]
    cache.forget(deleting())
    assert cache.read(kept).layers[0].keys[:, 0, 0].tolist() == [6, 7]


def test_branches_of_one_key_have_one_place():
    """Two names may have the same tokens. All chunks that state either of them count."""
    cache = BranchCache(memory(6))
    add(cache, root("old"), first=50.0)
    one = root("one")[0]
    add(cache, [one._replace(stated_by=("a",)), one._replace(stated_by=("b",), tokens=range(2, 4))])
    add(cache, root("two"), first=5.0)
    assert read(cache, "old", "one", "two") == [50, 51, 0, 1, 5, 6]
    cache.forget(deleting("a"))
    assert found(cache, ["one"]) == [9]
    cache.forget(deleting("b"))
    assert found(cache, ["one"]) == [None]


def test_what_is_too_large_is_left_out_with_what_is_below_it():
    cache = BranchCache(memory(3))
    large = PromptBranch(b"large", None, (), 0, range(4))
    below = PromptBranch(b"below", b"large", (), 1, range(4, 5))
    small = PromptBranch(b"small", None, (), 2, range(5, 7))
    add(cache, [large, below, small])
    assert found(cache, ["large", "below", "small"]) == [None, None, 2]
    assert read(cache, "small") == [5, 6]


@pytest.mark.parametrize("seed", range(8))
def test_no_row_is_lost_or_used_twice(seed):
    """Whatever was added, dropped and deleted, branches have the numbers that they were added with."""
    drawn = random.Random(seed)
    cache = BranchCache(memory(20))
    numbers: dict[bytes, list[float]] = {}
    begun = 0
    for step in range(200):
        keys = [f"{drawn.randrange(8)}".encode() for _ in range(drawn.randint(1, 4))]
        if drawn.random() < 0.2:
            cache.drop(keys)
        elif drawn.random() < 0.1:
            cache.forget(deleting(*map(bytes.decode, keys)))
        else:
            known = dict(zip(keys, cache.find(keys), strict=True))
            branches = []
            done = 0
            for key, found_branch in known.items():
                tokens = range(0) if found_branch else range(done, done + drawn.randint(1, 6))
                branches.append(PromptBranch(key, None, (key.decode(),), 0, tokens))
                if tokens:
                    numbers[key] = [10.0 * step + place for place in tokens]
                    done = tokens.stop
            add(cache, branches, begun, 10.0 * step)
        begun = cache.deletions - drawn.randrange(2) if cache.deletions else 0
        kept = [(key, one) for key, one in zip(numbers, cache.find(list(numbers)), strict=True) if one is not None]
        for key, _ in kept:
            assert read(cache, key.decode()) == numbers[key]
        rows = [row for _, one in kept for row in one.rows]
        assert len(rows) == len(set(rows)) <= 20
    cache.forget(deleting())
    add(cache, [PromptBranch(b"all", None, (), 0, range(20))], cache.deletions)
    assert read(cache, "all") == list(range(20))


def test_nothing_of_a_prompt_makes_room_for_the_rest_of_it():
    cache = filled(ALL)
    found_again = [branch._replace(tokens=range(0)) for branch in computed()]
    add(cache, [*found_again, *root("one")])
    assert found(cache, [*KEYS, "one"]) == [0, 1, 2, 3, None]


def test_a_branch_without_its_parent_is_not_kept():
    cache = BranchCache(memory(100 * ALL))
    add(cache, computed(["by", "director", "city"]))
    assert found(cache) == [None, None, None, 2]


def test_what_is_kept_already_stays_and_what_is_new_is_added_behind_it():
    cache = filled()
    new = [
        PromptBranch(b"film", None, (), 0, range(0)),
        PromptBranch(b"year", b"film", (), 7, range(1)),
        PromptBranch(b"city", None, (), 8, range(1, 3)),
    ]
    add(cache, new)
    assert found(cache, [*KEYS, "year"]) == [0, 1, 2, 3, 7]


def test_what_a_plan_names_is_dropped_with_what_is_below_it():
    cache = filled(ALL)
    cache.drop([b"by", b"director", b"unknown"])
    assert found(cache) == [0, None, None, 3]
    for name in ("one", "two"):
        add(cache, root(name))
    # There was room for both.
    assert found(cache, [*KEYS, "one", "two"]) == [0, None, None, 3, 9, 9]


def test_a_branch_that_was_dropped_is_kept_again():
    cache = filled(ALL)
    cache.drop([b"film"])
    add(cache, computed())
    assert found(cache) == [0, 1, 2, 3]


def test_without_room_the_leaves_that_are_unused_for_longest_leave_first():
    cache = filled(ALL)
    found(cache, ["film"])
    add(cache, root("one"))
    # The leaf of the path and the other tree were used equally long ago; the root was used since.
    assert found(cache)[:2] == [0, 1]
    assert found(cache).count(None) == 1
    for number in range(4):
        add(cache, root(f"root {number}"))
    assert found(cache) == [None] * 4


def test_it_never_keeps_more_than_its_size():
    cache = filled(3)
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
    cache = BranchCache(memory(100 * ALL))
    add(cache, computed(stated_by=STATED_BY | {"director": ("a", "b")}))
    cache.forget(deleting("a"))
    assert found(cache) == [0, None, None, 3]


def test_a_later_prompt_may_state_a_kept_branch_by_another_chunk():
    cache = filled()
    add(cache, [PromptBranch(b"film", None, ("c",), 0, range(0)), PromptBranch(b"by", b"film", ("c",), 1, range(0))])
    cache.forget(deleting("a", "b"))
    assert found(cache) == [0, 1, None, None]


def test_what_no_chunk_states_is_the_prompts_own_and_stays():
    cache = filled()
    add(cache, root("Facts:"))
    cache.forget(deleting("a", "b"))
    assert found(cache, ["Facts:"]) == [9]
    cache.forget(deleting())
    assert found(cache, ["Facts:"]) == [None]


def test_a_deletion_of_everything_drops_its_namespaces_and_what_is_computed_meanwhile():
    cache = filled()
    cache.add("other", computed(namespace="other"), kv(ALL, 0.0), 0)
    cache.forget(deleting())
    assert found(cache) == [None] * 4
    assert found(cache, namespace="other") == [0, 1, 2, 3]
    add(cache, computed())
    assert found(cache) == [None] * 4
    add(cache, computed(), cache.deletions)
    assert found(cache) == [0, 1, 2, 3]


def test_what_was_deleted_since_a_prompt_was_begun_is_not_kept():
    cache = BranchCache(memory(ALL))
    cache.forget(deleting("a", namespace="other"))
    cache.forget(deleting("a"))
    cache.forget(deleting("x"))
    add(cache, computed(), deletions=0)
    assert found(cache) == [0, None, None, 3]
    assert read(cache, "film", "city") == [0, 1, 6, 7]
    # The deleted chunk does not state the root any more.
    cache.forget(deleting("b"))
    assert found(cache) == [None] * 4


def test_what_was_deleted_before_a_prompt_was_begun_is_kept():
    cache = BranchCache(memory(ALL))
    cache.forget(deleting("a"))
    add(cache, computed(), deletions=1)
    assert found(cache) == [0, 1, 2, 3]


def test_a_deletion_since_a_prompt_was_begun_takes_no_chunk_off_what_others_keep():
    """The chunk is there again: a later prompt stated what an earlier one, which ends behind it, had stated before."""
    cache = BranchCache(memory(ALL))
    cache.forget(deleting("a", "b"))
    add(cache, computed(), deletions=1)
    add(cache, [branch._replace(tokens=range(0)) for branch in computed()], deletions=0)
    cache.forget(deleting("b"))
    assert found(cache) == [0, 1, 2, None]


def test_what_is_below_a_deleted_branch_is_not_kept_although_other_chunks_state_it():
    cache = BranchCache(memory(ALL))
    cache.forget(deleting("a"))
    add(cache, computed(stated_by=STATED_BY | {"director": ("a", "b")}), deletions=0)
    assert found(cache) == [0, None, None, 3]


def test_a_prompt_that_was_begun_too_many_deletions_ago_keeps_nothing():
    cache = BranchCache(memory(100 * ALL))
    for _ in range(64):
        cache.forget(deleting("x"))
    add(cache, computed(), deletions=0)
    assert found(cache) == [0, 1, 2, 3]
    cache.forget(deleting("x"))
    add(cache, root("late"), deletions=0)
    assert found(cache, ["late"]) == [None]
    add(cache, root("late"), deletions=1)
    assert found(cache, ["late"]) == [9]


def test_room_is_given_back():
    cache = filled(ALL)
    for _ in range(3):
        cache.forget(deleting())
        add(cache, computed(), cache.deletions)
        assert found(cache) == [0, 1, 2, 3]
