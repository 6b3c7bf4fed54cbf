"""Streams of questions, by how popular their root entities are (DepCache, section 6.1)."""

import random
from collections.abc import Callable, Mapping, Sequence

_SESSIONS = 4
"""Sessions at the same time in ``temporal``."""

_GOES_ON = 7 / 8
"""The chance that a session goes on after a question, so that it has 8 on average."""

Roots = Sequence[Sequence[str]]
"""The root entities of each question's facts."""

Stream = Callable[[Roots, int, random.Random], list[int]]
"""Draws the numbers of so many questions."""


def uniform(roots: Roots, requests: int, draws: random.Random) -> list[int]:
    """Ask every question once, in a random order, and then any of them with the same chance."""
    asked = list(range(len(roots)))
    draws.shuffle(asked)
    return [*asked, *draws.choices(range(len(roots)), k=max(0, requests - len(asked)))][:requests]


def zipf(roots: Roots, requests: int, draws: random.Random) -> list[int]:
    """Draw a root entity by Zipf's law with exponent 1, and then any of the questions about it.

    Which entities are popular is random.
    """
    questions = _by_root(roots)
    entities = list(questions)
    draws.shuffle(entities)
    weights = [1 / rank for rank in range(1, len(entities) + 1)]
    return [draws.choice(questions[entity]) for entity in draws.choices(entities, weights, k=requests)]


def temporal(roots: Roots, requests: int, draws: random.Random) -> list[int]:
    """Ask in sessions, four at a time: each has one root entity, and asks any of the questions about it.

    A session ends after 8 questions on average. Another one about any entity takes its place, so popularity moves on.
    """
    questions = _by_root(roots)
    entities = list(questions)
    sessions = [draws.choice(entities) for _ in range(_SESSIONS)]
    asked: list[int] = []
    for _ in range(requests):
        turn = draws.randrange(_SESSIONS)
        asked.append(draws.choice(questions[sessions[turn]]))
        if draws.random() >= _GOES_ON:
            sessions[turn] = draws.choice(entities)
    return asked


STREAMS: Mapping[str, Stream] = {"uniform": uniform, "temporal": temporal, "zipf": zipf}
"""The streams by name."""


def _by_root(roots: Roots) -> dict[str, list[int]]:
    """The questions about each root entity."""
    questions: dict[str, list[int]] = {}
    for number, entities in enumerate(roots):
        for entity in entities:
            questions.setdefault(entity, []).append(number)
    return questions
