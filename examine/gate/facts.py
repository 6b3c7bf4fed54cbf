"""Facts of real graphs as prompts: the paths that a search returns, in full and as dependency trees."""

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from examine.measuring.kv_paths import KvPath
from generator.prompts.dependency_trees import Encode, parts_of
from protocol.dependency import TreePositions
from protocol.graph import Path
from protocol.plans import PrefillPlan
from protocol.prompts import Prompt
from protocol.tiers import Tier


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
    """One question with its facts, as plans for self-attention and for dependency attention.

    The ``prompt`` is laid out as in serving, with some of the facts' paths and without documents. ``context_tokens``
    are those of all these paths in full, and ``tree_tokens`` those of their trees.
    """

    def __init__(self, facts: Facts, prompt: Prompt, namespace: str, page_tokens: int) -> None:
        in_trees = prompt.in_trees
        trees = in_trees.trees
        assert trees is not None, "the prompt tells no facts"
        system, told, self._question = prompt.segments
        self.facts = facts
        self._in_trees = in_trees
        self._trees = trees
        # Without the trees that could stand in their place.
        self.in_full = Prompt(prompt.segments)
        self._path = KvPath((system,), page_tokens, namespace)
        self.context_tokens = len(told.token_ids)
        self.tree_tokens = trees.end - trees.start

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
    def front(self) -> PrefillPlan:
        """A plan that computes the system prompt, and keeps it."""
        return self._path.plan(self._question, None, Tier.GPU)

    def self_attention(self) -> PrefillPlan:
        """A plan for the paths in full, behind the system prompt's KV."""
        return self._planned(self.in_full)

    def dependency(self, positions: TreePositions, *, reuse: bool, blind: bool = False) -> PrefillPlan:
        """A plan for the trees, behind the system prompt's KV. ``blind`` branches do not attend to that."""
        front = 0 if blind else self._trees.front
        trees = msgspec.structs.replace(self._trees, front=front, positions=positions, reuse=reuse)
        return msgspec.structs.replace(self._planned(self._in_trees), trees=trees)

    def _planned(self, prompt: Prompt) -> PrefillPlan:
        return msgspec.structs.replace(self._path.plan(self._question, Tier.GPU, None), prompt=prompt)
