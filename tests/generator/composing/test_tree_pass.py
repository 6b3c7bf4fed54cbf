"""Which keys a pass gives each token: exactly those that brute force finds."""

import random

import pytest
import torch

from generator.composing.dependency.forest import Forest, tree_pass
from generator.composing.runs import Run
from protocol.dependency import Branch, DependencyTrees

BLOCKS = torch.arange(100)


def random_trees(seed: int, start: int, front: int) -> DependencyTrees:
    """Trees of up to 60 branches, in pre-order: each branch continues the path to the one before it."""
    drawn = random.Random(seed)
    branches: list[Branch] = []
    path: list[int] = []
    for place in range(drawn.randint(1, 60)):
        path = path[: drawn.randint(0, len(path))]
        branches.append(Branch(drawn.randint(1, 7), path[-1] if path else -1))
        path.append(place)
    return DependencyTrees(start, front, tuple(branches))


def attended_by_brute_force(trees: DependencyTrees) -> dict[int, set[int]]:
    """The places that the token at each place of the trees attends to."""
    places: list[list[int]] = []
    end = trees.start
    for branch in trees.branches:
        places.append(list(range(end, end + branch.tokens)))
        end += branch.tokens
    attended = {}
    for own, branch in zip(places, trees.branches, strict=True):
        above: set[int] = set(range(trees.front))
        parent = branch.parent
        while parent >= 0:
            above |= set(places[parent])
            parent = trees.branches[parent].parent
        for number, place in enumerate(own):
            attended[place] = above | set(own[: number + 1])
    return attended


def attended_in_pass(forest: Forest, part: list[Run]) -> dict[int, set[int]]:
    """The same, as a pass over ``part`` says it."""
    context, chosen, mask, blocks, _ = tree_pass(forest, part, BLOCKS, torch.float32)
    assert blocks is BLOCKS
    computed = [place for run in part for place in range(run.start, run.end)]
    assert set(context.tolist()).isdisjoint(computed)
    places = torch.tensor([*context.tolist(), *computed])[chosen]
    # Groups are consecutive, and only the last of them is padded.
    rows = [(group, row) for group in range(len(mask)) for row in range(mask.shape[1])]
    assert 0 <= len(rows) - len(computed) < mask.shape[1]
    # Numbers that come of nothing but minus infinity are not numbers.
    assert mask.isfinite().any(-1).all()
    return {
        place: set(places[group][mask[group, row] == 0].tolist())
        for place, (group, row) in zip(computed, rows[: len(computed)], strict=True)
    }


@pytest.mark.parametrize("front", [0, 5, 400])
@pytest.mark.parametrize("seed", range(8))
def test_each_token_attends_to_the_front_to_its_ancestors_and_to_itself(seed: int, front: int):
    trees = random_trees(seed, max(front, 3), front)
    forest = Forest(trees)
    assert attended_in_pass(forest, [forest.place]) == attended_by_brute_force(trees)


@pytest.mark.parametrize("seed", range(8))
def test_a_part_attends_to_what_is_in_place_and_to_what_it_computes(seed: int):
    trees = random_trees(seed, 20, 20)
    forest = Forest(trees)
    part = random.Random(seed).sample(forest.runs, 1 + len(forest.runs) // 2)
    part.sort()
    expected = attended_by_brute_force(trees)
    found = attended_in_pass(forest, part)
    assert found == {place: expected[place] for run in part for place in range(run.start, run.end)}


def test_a_part_may_end_within_a_branch():
    trees = DependencyTrees(4, 4, (Branch(3, -1), Branch(6, 0)))
    found = attended_in_pass(Forest(trees), [Run(7, 9)])
    assert found == {7: {*range(4), 4, 5, 6, 7}, 8: {*range(4), 4, 5, 6, 7, 8}}


def test_a_group_has_few_keys_although_its_tree_is_large():
    """A hub with many relations: each token attends to the hub's name, and no group has the whole tree for keys."""
    branches = (Branch(3, -1), *(Branch(5, 0) for _ in range(200)))
    made = tree_pass(Forest(DependencyTrees(10, 10, branches)), [Run(10, 1013)], BLOCKS, torch.float32)
    chosen, mask = made.chosen, made.mask
    assert chosen.shape[1] <= 10 + 3 + mask.shape[1] + 5
    assert mask.shape[1] <= 64


def test_groups_grow_with_the_front_that_each_of_them_copies():
    branches = (Branch(3, -1), *(Branch(5, 0) for _ in range(200)))
    made = tree_pass(Forest(DependencyTrees(2000, 2000, branches)), [Run(2000, 3003)], BLOCKS, torch.float32)
    assert made.mask.shape[1] >= 300
    assert made.chosen.numel() <= 8 * 1003
