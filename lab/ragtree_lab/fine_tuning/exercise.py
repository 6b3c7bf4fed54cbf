"""What a model is trained on: questions with their answers, behind the same facts."""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import msgspec

from protocol.dependency import DependencyTrees, TreePositions
from protocol.errors import InvalidRequest
from protocol.prompts import Prompt


class Answered(NamedTuple):
    """A question and its right answer as token ids. The loss is that of the ``answer`` alone, whose last token ends it.

    ``right`` are all right answers as texts.
    """

    question: tuple[int, ...]
    answer: tuple[int, ...]
    right: tuple[str, ...] = ()


class Exercise(NamedTuple):
    """Questions that are ``asked`` behind the same system prompt and facts.

    ``in_trees`` are the token ids of these with the facts as ``trees``, and ``in_full`` those with every path in full.
    """

    in_full: tuple[int, ...]
    in_trees: tuple[int, ...]
    trees: DependencyTrees
    asked: tuple[Answered, ...]


class Source(NamedTuple):
    """Exercises of one origin: those to train on (``training``), and others to compare the model by (``held_out``).

    ``left_out`` counts the questions that were not taken, because their facts state no right answer.
    """

    training: Sequence[Exercise]
    held_out: Sequence[Exercise]
    left_out: int = 0


class LaidOut(NamedTuple):
    """A prompt as serving lays it out, whose last segment is the question, and the ``answer`` to it as token ids.

    ``right`` are all right answers as texts.
    """

    prompt: Prompt
    answer: tuple[int, ...]
    right: tuple[str, ...] = ()


def exercises(laid_out: Iterable[LaidOut], positions: TreePositions) -> list[Exercise]:
    """Return prompts as exercises, in the order of their first questions. Prompts with equal fronts are one exercise.

    So the facts are computed once for all questions about them. Raises InvalidRequest for a prompt without facts, or
    without a token to learn.
    """
    found: dict[Exercise, list[Answered]] = {}
    for one in laid_out:
        front, answered = _parted(one, positions)
        found.setdefault(front, []).append(answered)
    return [front._replace(asked=tuple(asked)) for front, asked in found.items()]


def batches(learned: Iterable[Exercise], questions: int) -> Iterator[list[Exercise]]:
    """Exercises in batches of at least so many questions. The last one has what is left."""
    batch: list[Exercise] = []
    for exercise in learned:
        batch.append(exercise)
        if sum(len(one.asked) for one in batch) >= questions:
            yield batch
            batch = []
    if batch:
        yield batch


def _parted(laid_out: LaidOut, positions: TreePositions) -> tuple[Exercise, Answered]:
    """An exercise without a question, and the question."""
    prompt, in_trees = laid_out.prompt, laid_out.prompt.in_trees
    if in_trees.trees is None:
        raise InvalidRequest("the prompt has no facts", "paths")
    if not laid_out.answer:
        raise InvalidRequest("the answer has no tokens", "answers")
    trees = msgspec.structs.replace(in_trees.trees, positions=positions)
    trees.check(in_trees.token_count)
    question = prompt.segments[-1].token_ids
    full, own = (tuple(one.token_ids[: -len(question)]) for one in (prompt, in_trees))
    return Exercise(full, own, trees, ()), Answered(question, laid_out.answer, laid_out.right)
