"""Facts of real graphs as prompts: the paths that a search returns, in full and as dependency trees."""

from collections.abc import Sequence
from typing import NamedTuple

from examine.gate.examination import FactPlans
from generator.prompts.dependency_trees import Encode, parts_of
from protocol.graph import Path
from protocol.kv import Paging
from protocol.prompts import Prompt


class Facts(NamedTuple):
    """A question, its right ``answers``, and the ``paths`` that a search returned for it, best roots first."""

    question: str
    answers: Sequence[str]
    paths: Sequence[Path]

    def within(self, tokens: int, encode: Encode) -> "Facts":
        """The same with as many paths, in their order, as take up to ``tokens`` tokens in full."""
        kept: list[Path] = []
        for path in self.paths:
            tokens -= sum(len(encode(part)) for part in parts_of(path))
            if tokens < 0:
                break
            kept.append(path)
        return self._replace(paths=kept)


class FactsPrompt(FactPlans):
    """The prompt of ``facts``, whose paths take ``context_tokens`` in full and ``tree_tokens`` as trees."""

    def __init__(self, facts: Facts, prompt: Prompt, namespace: str, paging: Paging) -> None:
        super().__init__(prompt, namespace, paging)
        self.facts = facts
        self.context_tokens = len(prompt.segments[1].token_ids)
        self.tree_tokens = self.trees.end - self.trees.start

    @property
    def pairs(self) -> int:
        """The pairs of tokens among the facts that attend to each other with every path in full."""
        return self.context_tokens * (self.context_tokens + 1) // 2

    @property
    def tree_pairs(self) -> int:
        """The pairs of tokens among the facts that attend to each other in trees."""
        found, depths = 0, list[int]()
        for branch in self.trees.branches:
            above = depths[branch.parent] if branch.parent >= 0 else 0
            depths.append(above + branch.tokens)
            found += branch.tokens * above + branch.tokens * (branch.tokens + 1) // 2
        return found
