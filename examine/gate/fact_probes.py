"""Questions about made-up facts, which stand in prompts as the paths of a graph."""

import random
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple

from examine.composing.tasks import PROJECTS, TOKENS_PER_CODE, Probe, draw_codes, share_found
from protocol.graph import Path, Source

_PROJECTS = 8
"""Root entities of a prompt. All have the same kinds of facts, so an answer is right only if it is of the right one."""

_CITIES = (
    *("Aarhus", "Bergen", "Cadiz", "Delft", "Espoo", "Faro"),
    *("Ghent", "Haarlem", "Izmir", "Jena", "Kaunas", "Lugano"),
)

_SOURCE = Source("made up", 0, "")


class FactTask(NamedTuple):
    """Questions over the same ``paths``."""

    paths: tuple[Path, ...]
    asked: tuple[Probe, ...]


def fact_tasks(kind: str, seed: int) -> Iterator[FactTask]:
    """Endless tasks of a kind of ``FACTS``."""
    draws = random.Random(f"facts {kind} {seed}")  # noqa: S311 - a repeatable draw
    while True:
        yield FACTS[kind](draws)


def _one_hop(draws: random.Random) -> FactTask:
    projects = [f"the {name} project" for name in draws.sample(PROJECTS, _PROJECTS)]
    codes = draw_codes(draws, _PROJECTS)
    paths: list[Path] = []
    for project, code in zip(projects, codes, strict=True):
        own = [
            _path(project, "-has access code->", code),
            _path(project, "-is kept in->", draws.choice(_CITIES)),
            _path(project, "-was begun in->", str(draws.randrange(1950, 2020))),
        ]
        paths += draws.sample(own, len(own))
    asked = tuple(
        _asked(f"What is the access code of {project}?", f"The access code of {project} is", code)
        for project, code in zip(projects, codes, strict=True)
    )
    return FactTask(tuple(paths), asked)


def _two_hop(draws: random.Random) -> FactTask:
    projects = [f"the {name} project" for name in draws.sample(PROJECTS, _PROJECTS)]
    houses = [f"the {name} house" for name in draws.sample(PROJECTS, _PROJECTS)]
    codes = draw_codes(draws, _PROJECTS)
    paths: list[Path] = []
    for project, house, code in zip(projects, houses, codes, strict=True):
        own = [
            _path(project, "-is kept in->", house, "-has access code->", code),
            _path(project, "-is kept in->", house, "-stands in->", draws.choice(_CITIES)),
            _path(project, "-was begun in->", str(draws.randrange(1950, 2020))),
        ]
        paths += draws.sample(own, len(own))
    asked = tuple(
        _asked(
            f"In which house is {project} kept, and what is the access code of that house?",
            f"It is kept in {house}, whose access code is",
            code,
        )
        for project, house, code in zip(projects, houses, codes, strict=True)
    )
    return FactTask(tuple(paths), asked)


FACTS: Mapping[str, Callable[[random.Random], FactTask]] = MappingProxyType(
    {"one-hop facts": _one_hop, "two-hop facts": _two_hop}
)
"""Kinds of questions: about a root's own facts, and about the second step of a path that the answer begins with."""


def _asked(question: str, opening: str, code: str) -> Probe:
    return Probe(question, opening, (code,), share_found, TOKENS_PER_CODE)


def _path(*parts: str) -> Path:
    relations = parts[1::2]
    return Path(parts[::2], relations, (_SOURCE,) * len(relations), 1.0)
