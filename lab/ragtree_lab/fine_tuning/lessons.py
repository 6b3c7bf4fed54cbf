"""Lays questions over facts out as exercises, as serving lays out a query."""

from collections.abc import Iterator, Sequence

from examine.composing.tasks import Probe, opened
from examine.evaluation.scores import f1
from examine.gate.fact_probes import FactTask
from generator.prompts.layout import SegmentLayout
from generator.prompts.tokenizer import ModelTokenizer
from protocol.dependency import TreePositions
from protocol.errors import ConfigError
from protocol.graph import Path
from protocol.prompts import ChatMessage
from ragtree_lab.fine_tuning.curriculum import Curriculum
from ragtree_lab.fine_tuning.exercise import Exercise, LaidOut, Source, exercises

MOST_TOKENS = 64
"""Of the answer to a real question."""


class Lessons:
    """Makes exercises with a model's ``tokenizer`` and the prompts of a ``layout``; trees have these ``positions``."""

    def __init__(self, tokenizer: ModelTokenizer, layout: SegmentLayout, positions: TreePositions) -> None:
        self._tokenizer = tokenizer
        self._layout = layout
        self._positions = positions
        self._end = tokenizer.encode_template(tokenizer.chat_template.end)

    def exercises(self, tasks: Sequence[FactTask]) -> list[Exercise]:
        """The tasks as exercises. As in serving, facts take up to a quarter of the room, and the rest is left out.

        Raises ConfigError if there is no room for any of a question's facts, and QuestionTooLong.
        """
        return exercises(self._laid_out(tasks), self._positions)

    def source(self, curriculum: Curriculum) -> Source:
        """The tasks of a source as exercises. Raises as ``exercises``."""
        training, held_out, left_out = curriculum
        return Source(self.exercises(training), self.exercises(held_out), left_out)

    def told(self, question: str, paths: Sequence[Path]) -> tuple[Path, ...]:
        """The paths that the prompt of a question tells, as in serving. Raises QuestionTooLong."""
        prompt = self._layout.lay_out([ChatMessage("user", question)], [], MOST_TOKENS, paths=paths)
        return tuple(paths[place] for place in prompt.paths)

    def f1(self, answer: Sequence[int], right: Sequence[str]) -> float:
        """The F1 of an answer's words, from 0 to 1."""
        completed = self._tokenizer.decode_stream()
        return f1("".join(completed(token) for token in answer), right)

    def _laid_out(self, tasks: Sequence[FactTask]) -> Iterator[LaidOut]:
        for task in tasks:
            for asked in task.asked:
                yield self._one(asked, task.paths)

    def _one(self, asked: Probe, paths: Sequence[Path]) -> LaidOut:
        opening = self._tokenizer.encode(asked.opening)
        # Behind an opening, a word begins with its space.
        space = " " if asked.opening and not asked.opening[-1].isspace() else ""
        # With its end, so that the model goes on to end its answers.
        answer = self._tokenizer.encode(f"{space}{asked.answers[0]}") + self._end
        room = len(opening) + len(answer)
        prompt = self._layout.lay_out([ChatMessage("user", asked.question)], [], room, paths=paths)
        if prompt.facts is None:
            raise ConfigError(f"the model's context has no room for the facts of {asked.question!r}", "questions")
        return LaidOut(opened(prompt, opening), answer, asked.answers)
