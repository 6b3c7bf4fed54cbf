"""A user's file of questions with their facts: one JSON object a line, plain or gzipped.

    {"question": "Where was Ada born?", "answers": ["London"],
     "paths": [{"entities": ["Ada", "London"], "relations": ["-born in->"]}]}

``paths`` are as in ``graph.paths`` of the replies of ``POST /search``: relations as they are read, one fewer than
entities. Their other fields are not read. ``opening`` is optional: how the answer begins, which the prompt has then.
"""

from collections.abc import Sequence
from pathlib import Path as File

import msgspec

from examine.composing.tasks import Probe
from examine.evaluation.scores import f1
from examine.gate.fact_probes import FactTask
from protocol.errors import ConfigError
from protocol.graph import Path, Source
from ragtree_lab.fine_tuning.lessons import MOST_TOKENS
from ragtree_lab.workloads.json_lines import JsonLines


class _ToldPath(msgspec.Struct, frozen=True):
    """A path, the root entity first."""

    entities: tuple[str, ...]
    relations: tuple[str, ...]

    def __post_init__(self) -> None:
        if not self.relations or len(self.entities) != len(self.relations) + 1:
            raise ValueError("a path has at least one relation, and one entity more than relations")
        if not all(text.strip() for text in (*self.entities, *self.relations)):
            raise ValueError("an entity or a relation is empty")


class _Line(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A question with its facts. The model learns the first one of the right ``answers``.

    Unknown fields are refused, because a misspelt one would go unnoticed.
    """

    question: str
    answers: tuple[str, ...]
    paths: tuple[_ToldPath, ...]
    opening: str = ""

    def __post_init__(self) -> None:
        if not self.question.strip():
            raise ValueError("the question is empty")
        if not self.answers or not all(answer.strip() for answer in self.answers):
            raise ValueError("there is no answer, or an empty one")
        if not self.paths:
            raise ValueError("there are no paths")


def read_fact_tasks(file: File) -> list[FactTask]:
    """Read a file of questions. Those with equal paths are one task, at the place of the first of them.

    Raises ConfigError with the first faulty line, or if the file has no question.
    """
    found: dict[tuple[Path, ...], list[Probe]] = {}
    for _, line in JsonLines(file, _Line):
        asked = Probe(line.question, line.opening, line.answers, f1, MOST_TOKENS)
        found.setdefault(_paths(line.paths), []).append(asked)
    if not found:
        raise ConfigError(f"{file} has no question", "file")
    return [FactTask(paths, tuple(asked)) for paths, asked in found.items()]


def _paths(told: Sequence[_ToldPath]) -> tuple[Path, ...]:
    source = Source("a file", 0, "")
    return tuple(Path(one.entities, one.relations, (source,) * len(one.relations), 0.0) for one in told)
