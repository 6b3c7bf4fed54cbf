"""A prompt's dependency trees as a cache of branches sees them."""

from collections.abc import Sequence

from benchmarks.graph.facts import Facts
from cachectl.nodes.keys import child_key, root_key
from cachectl.nodes.node import PathDocument
from generator.prompts.dependency_trees import Encode, dependency_trees

NAMESPACE = "facts"
"""All prompts have one system prompt and one model in front of their facts."""


class Forest:
    """The dependency trees of one question's facts, branch by branch in pre-order.

    ``branches`` have their content and tokens, and ``parents`` the places of the branches in front of them, -1 for a
    root's. Equal ``keys`` are equal branches behind equal ancestors, in any prompt. ``roots`` are the root entities.
    All branches together have ``tokens`` tokens, and the question behind them ``question_tokens``.
    """

    def __init__(self, facts: Facts, encode: Encode) -> None:
        trees = dependency_trees(facts.paths, encode)
        assert trees is not None, "the question has no facts"
        self.roots = list(dict.fromkeys(path.entities[0] for path in facts.paths))
        self.question_tokens = len(encode(facts.question))
        self.tokens = len(trees.token_ids)
        self.parents: list[int] = []
        self.branches: list[PathDocument] = []
        self.keys: list[bytes] = []
        begin = 0
        for branch in trees.branches:
            ids = trees.token_ids[begin : begin + branch.tokens]
            begin += branch.tokens
            # A branch is its tokens behind its ancestors', as in the engine's cache of branches.
            content = " ".join(map(str, ids))
            above = self.keys[branch.parent] if branch.parent >= 0 else root_key(NAMESPACE)
            self.parents.append(branch.parent)
            self.branches.append(PathDocument(content, branch.tokens))
            self.keys.append(child_key(above, content))

    @property
    def tokens_by_key(self) -> dict[bytes, int]:
        """The tokens of each branch."""
        return {key: branch.tokens for key, branch in zip(self.keys, self.branches, strict=True)}


def distinct_tokens(forests: Sequence[Forest]) -> int:
    """The tokens of all branches that any of the prompts has, each counted once."""
    every: dict[bytes, int] = {}
    for forest in forests:
        every.update(forest.tokens_by_key)
    return sum(every.values())
