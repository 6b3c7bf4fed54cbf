"""What is asked of composed prompts: needles hidden in real text.

A prompt has several chunks of real text. Needles are sentences of one form with codes of five digits, several to a
prompt, so an answer is right only if the model finds the one that is asked for (RULER, Hsieh et al. 2024). Each of them
is asked for, over the same chunks.
"""

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice, product
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

import msgspec

from protocol.prompts import Prompt, Segment

CHUNK_CHARACTERS = 600
"""The least length of a text that needles are hidden in, and the most that is used of it."""

_VALUES = 3
"""Codes of a project that has several."""

TOKENS_PER_CODE = 12
"""Of an answer. Most models read a code of five digits as five tokens."""

Score: TypeAlias = Callable[[str, Sequence[str]], float]


class Probe(NamedTuple):
    """A question whose answer begins with ``opening``, which the prompt has already.

    ``score`` compares an answer with the right ``answers``, from 0 to 1.
    """

    question: str
    opening: str
    answers: tuple[str, ...]
    score: Score
    max_tokens: int


class Task(NamedTuple):
    """Questions about the same ``chunks``. ``neighbour`` is another chunk, which says nothing about them."""

    chunks: tuple[str, ...]
    neighbour: str
    asked: tuple[Probe, ...]


class _Needles(NamedTuple):
    """Sentences to hide, and questions about them."""

    sentences: list[str]
    asked: tuple[Probe, ...]


def share_found(answer: str, right: Sequence[str]) -> float:
    """Return the share of the right answers that occur in the answer."""
    return sum(one in answer for one in right) / len(right)


def needle_tasks(kind: str, texts: Sequence[str], chunks: int, seed: int) -> Iterator[Task]:
    """Endless tasks of a kind of ``NEEDLES`` over real texts, each with ``chunks`` chunks."""
    draws = random.Random(f"{kind} {seed}")  # noqa: S311 - a repeatable draw
    while True:
        needles = NEEDLES[kind](draws, chunks)
        draws.shuffle(needles.sentences)
        hidden = [needles.sentences[number::chunks] for number in range(chunks)]
        neighbour, *chosen = draws.sample(texts, chunks + 1)
        hiding = tuple(hide(draws, text, own) for text, own in zip(chosen, hidden, strict=True))
        yield Task(hiding, neighbour, needles.asked)


def _multi_key(draws: random.Random, chunks: int) -> _Needles:
    names = draws.sample(PROJECTS, chunks)
    codes = draw_codes(draws, len(names))
    about = list(zip(names, codes, strict=True))
    return _Needles(
        [f"The access code of the {name} project is {code}" for name, code in about],
        tuple(
            _asked(f"What is the access code of the {name} project?", f"The access code of the {name} project is", code)
            for name, code in about
        ),
    )


def _multi_value(draws: random.Random, chunks: int) -> _Needles:
    names = draws.sample(PROJECTS, max(2, chunks // 2))
    codes = iter(draw_codes(draws, _VALUES * len(names)))
    about = [(name, tuple(islice(codes, _VALUES))) for name in names]
    return _Needles(
        [f"One access code of the {name} project is {code}" for name, own in about for code in own],
        tuple(
            _asked(f"List all three access codes of the {name} project.", f"The codes of the {name} project are", *own)
            for name, own in about
        ),
    )


def _two_hop(draws: random.Random, chunks: int) -> _Needles:
    projects, houses = draws.sample(PROJECTS, chunks), draws.sample(PROJECTS, chunks)
    about = list(zip(projects, houses, draw_codes(draws, chunks), strict=True))
    return _Needles(
        [f"The {project} project is kept in the {house} house" for project, house, _ in about]
        + [f"The access code of the {house} house is {code}" for _, house, code in about],
        tuple(
            _asked(
                f"In which house is the {project} project kept, and what is the access code of that house?",
                f"The {project} project is kept in the",
                code,
                hops=2,
            )
            for project, _, code in about
        ),
    )


def _asked(question: str, opening: str, *codes: str, hops: int = 1) -> Probe:
    return Probe(question, opening, codes, share_found, TOKENS_PER_CODE * len(codes) * hops)


NEEDLES: Mapping[str, Callable[[random.Random, int], _Needles]] = MappingProxyType(
    {"multi-key": _multi_key, "multi-value": _multi_value, "two-hop": _two_hop}
)
"""Kinds of needles: one of many codes, all codes of one project, and a code that two sentences lead to."""


def draw_codes(draws: random.Random, count: int) -> list[str]:
    """Return codes of five digits, all different."""
    return [str(code) for code in draws.sample(range(10_000, 100_000), count)]


def cut(text: str) -> str:
    """Return the text's first whole sentences, up to ``CHUNK_CHARACTERS``."""
    return text[:CHUNK_CHARACTERS].rpartition(". ")[0] + "."


def first(tasks: Iterator[Task], questions: int) -> list[Task]:
    """Return the first tasks, with ``questions`` questions in all, or all that there are."""
    found: list[Task] = []
    for task in tasks:
        asked = task.asked[:questions]
        found.append(task._replace(asked=asked))
        questions -= len(asked)
        if not questions:
            break
    return found


_FIRST = (
    "amber brave calm crimson daring eager fabled gentle golden hidden humble icy jolly keen lively lofty lunar mellow "
    "misty noble olive patient proud quiet rapid rustic scarlet silent silver solemn stormy sunny tidal upright "
    "valiant velvet vivid wandering winter wooden zealous ancient bronze coastal desert emerald"
)
_SECOND = (
    "anchor arrow badger beacon bridge canyon castle comet compass condor cypress dolphin falcon forest fountain "
    "glacier harbor heron island jaguar lantern maple meadow mirror orchard otter panther pepper pilgrim prairie "
    "puffin raven river rocket saddle sparrow summit temple thunder tiger tulip turtle valley violin walnut willow"
)

PROJECTS = tuple(f"{first} {second}" for first, second in product(_FIRST.split(), _SECOND.split()))
"""Names to ask for."""


def hide(draws: random.Random, text: str, sentences: Iterable[str]) -> str:
    """Return a text with sentences at random places before its last one."""
    parts = text.split(". ")
    for sentence in sentences:
        parts.insert(draws.randint(0, len(parts) - 1), sentence)
    return ". ".join(parts)


def opened(prompt: Prompt, opening: tuple[int, ...]) -> Prompt:
    """The prompt of a question whose answer has begun with the tokens of ``opening``."""
    *front, question = prompt.segments
    begun = Segment(question.kind, question.key, question.token_ids + opening)
    return msgspec.structs.replace(prompt, segments=(*front, begun))
