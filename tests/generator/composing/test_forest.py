"""Who attends to whom in dependency trees, and at which positions."""

import pytest
import torch

from generator.composing.dependency.forest import Forest
from generator.composing.runs import Run
from protocol.dependency import Branch, DependencyTrees, TreePositions
from protocol.errors import InvalidRequest

# Alice -likes-> Titanic, Alice -likes-> Rome, and Bob.
BRANCHES = (Branch(2, -1), Branch(1, 0), Branch(2, 1), Branch(1, 1), Branch(3, -1))


def forest(positions: TreePositions = TreePositions.PREORDER) -> Forest:
    return Forest(DependencyTrees(10, 4, BRANCHES, positions))


def test_branches_stand_in_preorder_and_trees_side_by_side():
    made = forest()
    assert made.runs == [Run(10, 12), Run(12, 13), Run(13, 15), Run(15, 16), Run(16, 19)]
    assert made.branch_of_tokens.tolist() == [0, 0, 1, 2, 2, 3, 4, 4, 4]


def test_a_branch_attends_to_its_ancestors_and_to_itself():
    assert forest().ancestors.int().tolist() == [
        [1, 0, 0, 0, 0],
        [1, 1, 0, 0, 0],
        [1, 1, 1, 0, 0],
        [1, 1, 0, 1, 0],
        [0, 0, 0, 0, 1],
    ]


def test_positions_are_places_or_depths():
    device = torch.device("cpu")
    assert forest().token_positions(device).tolist() == list(range(10, 19))
    assert forest(TreePositions.DEPTH).token_positions(device).tolist() == [4, 5, 6, 7, 8, 7, 4, 5, 6]


@pytest.mark.parametrize(
    "branches",
    [
        (),
        (Branch(2, 0),),
        (Branch(2, -1), Branch(0, 0)),
        (Branch(2, -1), Branch(2, 1)),
        (Branch(2, -1), Branch(2, -1), Branch(2, 0)),
        (Branch(2, -1), Branch(2, 5)),
        (Branch(2, -1), Branch(200, 0)),
    ],
)
def test_what_is_no_forest_in_the_prompt_is_refused(branches):
    with pytest.raises(InvalidRequest):
        DependencyTrees(10, 4, branches).check(100)
    DependencyTrees(10, 4, BRANCHES).check(100)


@pytest.mark.parametrize(("start", "front"), [(3, 4), (10, -1)])
def test_a_front_behind_the_trees_is_refused(start, front):
    with pytest.raises(InvalidRequest):
        DependencyTrees(start, front, BRANCHES).check(100)
