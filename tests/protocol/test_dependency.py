"""Keys of branches: equal for equal KV, in every process."""

import subprocess
import sys

import pytest
from msgspec.structs import replace

from protocol.dependency import Branch, DependencyTrees, TreePositions, branch_keys

TREES = DependencyTrees(3, 2, (Branch(2, -1), Branch(1, 0), Branch(2, -1), Branch(1, 2)))
TOKENS = [1, 2, 99, 5, 6, 7, 5, 8, 7, 50]
KEYS = branch_keys("tenant", TREES, TOKENS)


def test_branches_have_different_keys_behind_different_ancestors():
    assert len(set(KEYS)) == 4


def test_what_stands_beside_a_branch_does_not_matter():
    again = DependencyTrees(4, 2, (Branch(2, -1), Branch(1, 0)))
    assert branch_keys("tenant", again, [1, 2, 40, 41, 5, 8, 7]) == KEYS[2:]


@pytest.mark.parametrize(
    ("namespace", "trees", "tokens"),
    [
        ("other", TREES, TOKENS),
        ("tenant", replace(TREES, positions=TreePositions.PREORDER), TOKENS),
        ("tenant", replace(TREES, front=1), TOKENS),
        ("tenant", TREES, [1, 3, *TOKENS[2:]]),
    ],
)
def test_another_front_namespace_or_kind_of_position_has_other_keys(namespace, trees, tokens):
    assert not set(branch_keys(namespace, trees, tokens)) & set(KEYS)


def test_other_processes_have_the_same_keys():
    code = (
        "from protocol.dependency import *\n"
        "trees = DependencyTrees(3, 2, (Branch(2, -1), Branch(1, 0), Branch(2, -1), Branch(1, 2)))\n"
        f"print([key.hex() for key in branch_keys('tenant', trees, {TOKENS})])"
    )
    there = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert there.strip() == str([key.hex() for key in KEYS])
