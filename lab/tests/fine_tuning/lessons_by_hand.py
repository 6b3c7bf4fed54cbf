"""Small exercises with random tokens, and who attends to whom in them, asked of each pair of tokens."""

import random

import torch

from protocol.dependency import Branch, DependencyTrees, TreePositions
from ragtree_lab.fine_tuning.exercise import Answered, Exercise

# Two trees: one with branches of several depths, one of a root alone.
BRANCHES = (Branch(2, -1), Branch(1, 0), Branch(2, 1), Branch(3, 1), Branch(2, 0), Branch(4, -1))
FRONT, BEFORE, BEHIND = 3, 2, 1
"""Tokens of the system prompt, of the heading in front of the trees, and behind them."""

RIGHT = ("right",)
"""The right answers of all questions."""

TREES = DependencyTrees(FRONT + BEFORE, FRONT, BRANCHES, TreePositions.PREORDER)


def exercise(seed: int, positions: TreePositions = TreePositions.PREORDER, questions: int = 2) -> Exercise:
    """An exercise with random tokens below 256, whose questions and answers have several lengths."""
    draws = random.Random(seed)

    def tokens(count: int) -> tuple[int, ...]:
        return tuple(draws.choices(range(3, 256), k=count))

    trees = DependencyTrees(TREES.start, FRONT, BRANCHES, positions)
    asked = tuple(Answered(tokens(3 + number), tokens(2 + number), RIGHT) for number in range(questions))
    return Exercise(tokens(30), tokens(TREES.end + BEHIND), trees, asked)


def brute_force_mask(trees: DependencyTrees, tokens: int) -> torch.Tensor:
    """Which tokens each one of a prompt with one question attends to, asked of each pair."""
    of_token = [place for place, branch in enumerate(trees.branches) for _ in range(branch.tokens)]
    mask = torch.zeros(tokens, tokens, dtype=torch.bool)
    for query in range(tokens):
        for key in range(query + 1):
            seen = True
            if trees.start <= query < trees.end:
                if key < trees.start:
                    seen = key < trees.front
                else:
                    seen = of_token[key - trees.start] in _ancestors(trees, of_token[query - trees.start])
            mask[query, key] = seen
    return mask


def brute_force_positions(trees: DependencyTrees, tokens: int) -> list[int]:
    """The positions of a prompt's tokens: with ``depth``, of those in trees as if each path stood alone."""
    positions = list(range(tokens))
    if trees.positions is TreePositions.DEPTH:
        at = trees.start
        for place, branch in enumerate(trees.branches):
            above = sum(trees.branches[other].tokens for other in _ancestors(trees, place) - {place})
            positions[at : at + branch.tokens] = range(trees.front + above, trees.front + above + branch.tokens)
            at += branch.tokens
    return positions


def _ancestors(trees: DependencyTrees, place: int) -> set[int]:
    """A branch's ancestors and itself."""
    found = {place}
    while trees.branches[place].parent >= 0:
        place = trees.branches[place].parent
        found.add(place)
    return found
