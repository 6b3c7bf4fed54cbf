"""Which questions a model is trained on, and which are held out to compare it by."""

import random
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from benchmarks.gate.fact_probes import FACTS, FactTask, fact_tasks


class Curriculum(NamedTuple):
    """Tasks to train on (``training``), and others (``held_out``)."""

    training: list[FactTask]
    held_out: list[FactTask]

    def with_more(self, other: "Curriculum") -> "Curriculum":
        """Both together."""
        return Curriculum(self.training + other.training, self.held_out + other.held_out)


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
