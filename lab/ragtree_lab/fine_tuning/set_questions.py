"""Questions of sets, with the facts that a search in their documents' graph finds.

A question is taken if its prompt tells a path that one of its gold documents states, and that contains one of its
answers. Without the answer, facts would teach a model to guess.
"""

from collections.abc import Callable, Sequence
from pathlib import Path as Folder
from typing import TypeAlias

from examine.composing.tasks import Probe
from examine.evaluation.scores import f1, holds_answer
from examine.gate.fact_probes import FactTask
from protocol.errors import ConfigError
from protocol.graph import Path
from ragtree_lab.fine_tuning.curriculum import Curriculum, Stated, of_set
from ragtree_lab.fine_tuning.lessons import MOST_TOKENS
from ragtree_lab.graph.facts import Facts
from ragtree_lab.graph.facts_reader import FactsReader
from ragtree_lab.graph.sets import NO_GOLD, GraphSet, open_set, set_names
from ragtree_lab.workloads.datasets import Question

Told: TypeAlias = Callable[[str, Sequence[Path]], tuple[Path, ...]]
"""Which paths the prompt of a question tells, of those that were found."""

_DRAWN = 4
"""Questions that are drawn for each one that is wanted. The facts of most state no right answer."""


class SetQuestions:
    """Finds paths with a ``reader``, of which prompts tell some (``told``)."""

    def __init__(self, reader: FactsReader, told: Told) -> None:
        self._reader = reader
        self._told = told

    async def curricula(
        self, sets: Sequence[GraphSet], questions: int, held_out: int, seed: int
    ) -> dict[str, Curriculum]:
        """Of each set, up to so many questions to train on, and others to hold out, in a random order.

        A graph has the documents of the questions that are drawn, and as many others. Raises ConfigError if too few
        questions of a set can be taken, and what the retriever raises.
        """
        return {each.name: await self._curriculum(each, questions, held_out, seed) for each in sets}

    async def _curriculum(self, graph_set: GraphSet, questions: int, held_out: int, seed: int) -> Curriculum:
        drawn = graph_set.drawn(_DRAWN * (questions + held_out), seed)
        asked = list(drawn.questions())
        facts = await self._reader.read(drawn, asked)
        found = [one for one in map(self._stated, asked, facts) if one is not None]
        curriculum = of_set(found, questions, held_out, len(asked) - len(found))
        if not curriculum.training:
            raise ConfigError(
                f"the facts of {len(found)} of {len(asked)} questions of {drawn.name} state an answer, and {held_out} "
                "are to be held out: there is no question to train on",
                "set",
            )
        return curriculum

    def _stated(self, question: Question, facts: Facts) -> Stated | None:
        """The question with the paths of its prompt; None if these do not state an answer."""
        told = self._told(question.question, facts.paths)
        gold = [path.text for path in told if any(one.document_id in question.gold_doc_ids for one in path.sources)]
        # The model learns the first one.
        answers = sorted(question.answers, key=lambda answer: not any(holds_answer(text, [answer]) for text in gold))
        if not any(holds_answer(text, answers) for text in gold):
            return None
        asked = Probe(question.question, "", tuple(answers), f1, MOST_TOKENS)
        return Stated(FactTask(told, (asked,)), frozenset(question.gold_doc_ids))


def open_sets(data: Folder, names: Sequence[str]) -> list[GraphSet]:
    """Read the sets of these names below ``data``, with their questions that have answers.

    Raises ConfigError for a set that is unknown, has no documents or questions, or no question with an answer and known
    passages.
    """
    known = set_names(data, names)
    for name, reason in known.left_out.items():
        raise ConfigError(f"the set {name} cannot be trained on: {reason}", "set")
    return [_answered(data, name) for name in known.complete]


def _answered(data: Folder, name: str) -> GraphSet:
    found = open_set(data, name, of_all_types=True)
    if found is None:
        raise ConfigError(f"the set {name} cannot be trained on: {NO_GOLD}", "set")
    questions = [question for question in found.questions() if question.answers]
    if not questions:
        raise ConfigError(f"the set {name} cannot be trained on: no question has an answer", "set")
    return GraphSet(found.name, found.gold, list(found.documents()), questions)
