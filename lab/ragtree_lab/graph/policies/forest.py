"""A prompt's dependency trees as a cache of branches sees them."""

from collections.abc import Sequence

from cachectl.branches import keyed
from generator.prompts.dependency_trees import Encode, dependency_trees
from protocol.dependency import DependencyTrees
from ragtree_lab.graph.facts import Facts

NAMESPACE = "facts"
"""All prompts have one system prompt and one model in front of their facts."""


class Forest:
    """The dependency trees of one question's facts, branch by branch in pre-order.

    Equal ``keys`` of ``branches`` are equal branches behind equal ancestors, in any prompt. ``roots`` are the root
    entities. All branches together have ``tokens`` tokens, and the question behind them ``question_tokens``.
    """

    def __init__(self, facts: Facts, encode: Encode) -> None:
        trees = dependency_trees(facts.paths, encode)
        assert trees is not None, "the question has no facts"
        self.roots = list(dict.fromkeys(path.entities[0] for path in facts.paths))
        self.question_tokens = len(encode(facts.question))
        self.tokens = len(trees.token_ids)
        self.branches = keyed(NAMESPACE, DependencyTrees(0, 0, trees.branches), trees.token_ids)
        self.keys = [branch.key for branch in self.branches]

    @property
    def tokens_by_key(self) -> dict[bytes, int]:
        """The tokens of each branch."""
        return {branch.key: branch.tokens for branch in self.branches}


def distinct_tokens(forests: Sequence[Forest]) -> int:
    """The tokens of all branches that any of the prompts has, each counted once."""
    every: dict[bytes, int] = {}
    for forest in forests:
        every.update(forest.tokens_by_key)
    return sum(every.values())
