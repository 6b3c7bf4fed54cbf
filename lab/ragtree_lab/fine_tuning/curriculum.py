"""Which questions a model is trained on, and which are held out to compare it by."""

import random
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from examine.gate.fact_probes import FACTS, FactTask, fact_tasks


class Curriculum(NamedTuple):
    """Tasks of one source: those to train on (``training``), and others (``held_out``).

    ``left_out`` counts the questions that were not taken, because their facts state no right answer.
    """

    training: list[FactTask]
    held_out: list[FactTask]
    left_out: int = 0


class Stated(NamedTuple):
    """A question over facts that state its answer, and the ``documents`` that hold it."""

    task: FactTask
    documents: frozenset[str]


def made_up(questions: int, held_out: int, seed: int) -> Curriculum:
    """So many made-up questions of all kinds in turn. The first ones are held out, so that more change nothing else."""
    tasks = _made_up_tasks(seed)
    kept = _first(tasks, held_out)
    return Curriculum(_first(tasks, questions), kept)


def of_file(tasks: Sequence[FactTask], held_out: int, seed: int) -> Curriculum:
    """A file's questions in a random order. Held out are the first tasks of those with so many questions.

    So no facts of a held-out question are trained on as a whole, though single paths may be.
    """
    order = iter(random.Random(seed).sample(tasks, len(tasks)))  # noqa: S311 - a repeatable order
    kept: list[FactTask] = []
    while sum(len(task.asked) for task in kept) < held_out and (task := next(order, None)) is not None:
        kept.append(task)
    return Curriculum(list(order), kept)


def of_set(found: Sequence[Stated], questions: int, held_out: int, left_out: int) -> Curriculum:
    """The first questions are held out. Trained on are up to so many of the rest, about other documents and facts."""
    kept = found[:held_out]
    documents = frozenset[str]().union(*(one.documents for one in kept))
    facts = {one.task.paths for one in kept}
    others = [
        one.task for one in found[held_out:] if one.task.paths not in facts and documents.isdisjoint(one.documents)
    ]
    return Curriculum(others[:questions], [one.task for one in kept], left_out)


def _made_up_tasks(seed: int) -> Iterator[FactTask]:
    # The gate's seeds are 0 and above. A model that has seen the gate's own questions would pass for nothing.
    kinds = [fact_tasks(kind, -1 - abs(seed)) for kind in FACTS]
    while True:
        for tasks in kinds:
            yield next(tasks)


def _first(tasks: Iterator[FactTask], questions: int) -> list[FactTask]:
    """The first tasks, with so many questions in all."""
    found: list[FactTask] = []
    while questions > 0:
        task = next(tasks)
        found.append(task._replace(asked=task.asked[:questions]))
        questions -= len(task.asked)
    return found
