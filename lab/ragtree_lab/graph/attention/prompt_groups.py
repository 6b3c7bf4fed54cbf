"""The benchmark's prompts, by what they are for: to warm caches up, to be timed, and to load the engines.

Each question is asked once by each way, in a shuffled order, so what is reused are other questions' facts.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple
from uuid import uuid4

from generator.prompts.layout import SegmentLayout
from protocol.errors import ConfigError
from protocol.graph import ContextBudget
from protocol.kv import Paging
from protocol.prompts import ChatMessage, Prompt
from ragtree_lab.graph.facts import Facts, FactsPrompt

MOST_TIMED = 32
"""Prompts of one group whose times are measured, and as many again at once."""

ANSWER_TOKENS = 32


class PromptGroup(NamedTuple):
    """Prompts of one set with about ``tokens`` tokens of facts.

    ``warming`` ones fill the caches, and ``arriving`` ones come at rates; most groups have none. Then ``timed`` ones
    come alone, and ``at_once`` ones several at a time.
    """

    set: str
    tokens: int
    warming: Sequence[FactsPrompt]
    timed: Sequence[FactsPrompt]
    at_once: Sequence[FactsPrompt]
    arriving: Sequence[FactsPrompt] = ()

    def __str__(self) -> str:
        return f"{self.set}, {self.tokens:,} tokens"

    def to_answer(self, count: int) -> list[FactsPrompt]:
        """Up to ``count`` prompts whose answers are compared: those that are timed, and others if these are too few."""
        return [*self.timed, *self.at_once, *self.warming][:count]

    def with_arriving(self, count: int) -> "PromptGroup":
        """The same with ``count`` of the prompts that would warm up arriving at rates."""
        return self._replace(warming=self.warming[count:], arriving=self.warming[:count])


def least_questions(arriving: int) -> int:
    """The fewest questions that make a group with ``arriving`` prompts that arrive at rates."""
    return 2 * (arriving + MOST_TIMED)


class PromptGroups:
    """Makes groups of prompts for engines with pages as ``paging`` says.

    ``arriving`` says how many of so many prompts can arrive at rates; 0 if they are too few.
    """

    def __init__(self, layout: SegmentLayout, paging: Paging, arriving: Callable[[int], int]) -> None:
        self._layout = layout
        self._paging = paging
        self._arriving = arriving

    def over(self, sets: Mapping[str, Sequence[Facts]], context_tokens: Sequence[int]) -> list[PromptGroup]:
        """The groups of each set, with its facts cut to each of ``context_tokens``.

        One group has prompts that arrive at rates: the last one with enough prompts, of the first set that has any.
        Raises ConfigError if no set has three questions with so many tokens of facts.
        """
        groups: list[PromptGroup] = []
        for name, facts in sets.items():
            of_set = [group for tokens in context_tokens if (group := self._group(name, facts, tokens))]
            groups += of_set if any(group.arriving for group in groups) else self._with_arriving(of_set)
        if not groups:
            raise ConfigError("no set has three questions with so many tokens of facts", "context_tokens")
        return groups

    def _with_arriving(self, groups: list[PromptGroup]) -> list[PromptGroup]:
        for number, group in reversed(list(enumerate(groups))):
            # The other half of them still warms the caches up.
            if count := self._arriving(len(group.warming) // 2):
                return [*groups[:number], group.with_arriving(count), *groups[number + 1 :]]
        return groups

    def _group(self, name: str, facts: Sequence[Facts], tokens: int) -> PromptGroup | None:
        prompts = self._prompts(facts, tokens)
        part = min(MOST_TIMED, len(prompts) // 3)
        if not part:
            return None
        return PromptGroup(name, tokens, prompts[: -2 * part], prompts[-2 * part : -part], prompts[-part:])

    def _prompts(self, facts: Sequence[Facts], tokens: int) -> list[FactsPrompt]:
        # A namespace of its own for each group: its caches begin empty.
        namespace = uuid4().hex
        laid_out = [(one, self._lay_out(one, tokens)) for one in facts]
        made = [FactsPrompt(one, prompt, namespace, self._paging) for one, prompt in laid_out if prompt.facts]
        enough = [prompt for prompt in made if prompt.context_tokens >= 0.75 * tokens]
        random.Random(1).shuffle(enough)  # noqa: S311 - a repeatable order
        return enough

    def _lay_out(self, facts: Facts, tokens: int) -> Prompt:
        asked = [ChatMessage("user", facts.question)]
        return self._layout.lay_out(asked, [], ANSWER_TOKENS, paths=facts.paths, budget=ContextBudget(relation=tokens))
