"""Facts of real graphs as prompts: the paths that a search returns, in full and as dependency trees."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from benchmarks.measuring.kv_paths import KvPath
from generator.prompts.dependency_trees import Encode, dependency_trees, parts_of
from protocol.dependency import DependencyTrees, TreePositions
from protocol.graph import Path
from protocol.plans import PrefillPlan
from protocol.prompts import Prompt, Segment, SegmentKind
from protocol.tiers import Tier

Question = Callable[[str], Prompt]
"""The prompt of a question without any facts: a system segment and the question."""


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


class FactsPrompt:
    """One question with its facts, as prompts for self-attention and for dependency attention.

    ``context_tokens`` are those of all paths in full, and ``tree_tokens`` those of their trees.
    """

    def __init__(self, facts: Facts, encode: Encode, lay_out: Question, namespace: str, page_tokens: int) -> None:
        trees = dependency_trees(facts.paths, encode)
        assert trees is not None, "the question has no facts"
        self.facts = facts
        self._trees = trees
        self._system, self._question = lay_out(facts.question).segments
        parts = (encode(part) for path in facts.paths for part in parts_of(path))
        self._full = Segment(SegmentKind.QUESTION, "", tuple(token for part in parts for token in part))
        self._path = KvPath((self._system,), page_tokens, namespace)
        self.context_tokens = len(self._full.token_ids)
        self.tree_tokens = len(trees.token_ids)

    @property
    def pairs(self) -> int:
        """The pairs of tokens among the facts that attend to each other with every path in full."""
        return self.context_tokens * (self.context_tokens + 1) // 2

    @property
    def tree_pairs(self) -> int:
        """The pairs of tokens among the facts that attend to each other in trees."""
        found, depths = 0, list[int]()
        for branch in self._trees.branches:
            above = depths[branch.parent] if branch.parent >= 0 else 0
            depths.append(above + branch.tokens)
            found += branch.tokens * above + branch.tokens * (branch.tokens + 1) // 2
        return found

    @property
    def in_full(self) -> Prompt:
        """The prompt with every path in full."""
        return Prompt((self._system, self._full, self._question))

    @property
    def front(self) -> PrefillPlan:
        """A plan that computes the system prompt, and keeps it."""
        return self._path.plan(self._question, None, Tier.GPU)

    def self_attention(self) -> PrefillPlan:
        """A plan for the paths in full, behind the system prompt's KV."""
        return self._planned(self.in_full)

    def dependency(self, positions: TreePositions, *, reuse: bool, blind: bool = False) -> PrefillPlan:
        """A plan for the trees, behind the system prompt's KV. ``blind`` branches do not attend to that."""
        front = len(self._system.token_ids)
        context = Segment(SegmentKind.QUESTION, "", self._trees.token_ids)
        trees = DependencyTrees(front, 0 if blind else front, self._trees.branches, positions, reuse)
        plan = self._planned(Prompt((self._system, context, self._question)))
        return msgspec.structs.replace(plan, trees=trees)

    def _planned(self, prompt: Prompt) -> PrefillPlan:
        return msgspec.structs.replace(self._path.plan(self._question, Tier.GPU, None), prompt=prompt)
