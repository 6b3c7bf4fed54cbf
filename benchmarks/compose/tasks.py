"""What is asked of composed prompts: needles hidden in real text, and question sets.

A prompt has several chunks of real text. Needles are sentences of one form with codes of five digits, several to a
prompt, so an answer is right only if the model finds the one that is asked for (RULER, Hsieh et al. 2024).
"""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

from benchmarks.measuring.answer_scores import f1
from benchmarks.workloads.datasets import Dataset, Document
from benchmarks.workloads.needles import PROJECTS, hide
from protocol.errors import ConfigError

CHUNK_CHARACTERS = 600
"""The least length of a text that needles are hidden in, and the most that is used of it."""

_VALUES = 3

Score: TypeAlias = Callable[[str, Sequence[str]], float]


class Task(NamedTuple):
    """A question about ``chunks``: its answer begins with ``opening``, which the prompt has already.

    ``neighbour`` is another chunk, which says nothing about the question. ``score`` compares an answer with the right
    ``answers``, from 0 to 1.
    """

    chunks: tuple[str, ...]
    neighbour: str
    question: str
    opening: str
    answers: tuple[str, ...]
    score: Score
    max_tokens: int


class _Needles(NamedTuple):
    """Sentences to hide, and the question about one of them."""

    sentences: list[str]
    question: str
    opening: str
    answers: tuple[str, ...]


def share_found(answer: str, right: Sequence[str]) -> float:
    """Return the share of the right answers that occur in the answer."""
    return sum(one in answer for one in right) / len(right)


def needle_tasks(kind: str, texts: Sequence[str], chunks: int, seed: int) -> Iterator[Task]:
    """Endless tasks of a kind of ``NEEDLES`` over real texts, each with so many chunks."""
    draws = random.Random(f"{kind} {seed}")  # noqa: S311 - a repeatable draw
    while True:
        needles = NEEDLES[kind](draws, chunks)
        draws.shuffle(needles.sentences)
        hidden = [needles.sentences[number::chunks] for number in range(chunks)]
        neighbour, *chosen = draws.sample(texts, chunks + 1)
        yield Task(
            tuple(hide(draws, text, own) for text, own in zip(chosen, hidden, strict=True)),
            neighbour,
            needles.question,
            needles.opening,
            needles.answers,
            share_found,
            12 if len(needles.answers) == 1 else 36,
        )


def chunk_texts(data: Path, corpus: str) -> list[str]:
    """Return the beginnings of a corpus's documents, those that fill a chunk. Raises ConfigError if it is missing."""
    texts = [document.text for document in Dataset(data, corpus).documents()]
    return [cut(text) for text in texts if len(text) >= CHUNK_CHARACTERS]


def set_tasks(data: Path, name: str, chunks: int, seed: int) -> Iterator[Task]:
    """The questions of a set that names the documents with the answers, each with others of the set around them.

    A set that names a question's whole context has that, and no others. Raises ConfigError if the set has neither.
    """
    found = Dataset(data, name)
    documents = {document.doc_id: document for document in found.documents()}
    names = sorted(documents)
    draws = random.Random(f"{name} {seed}")  # noqa: S311 - a repeatable draw
    questions = [question for question in found.questions() if question.ctx_doc_ids or question.gold_doc_ids]
    if not questions:
        raise ConfigError(f"the set {name} does not say which documents its questions are about", "sets")
    draws.shuffle(questions)
    for question in questions:
        ids = list(question.ctx_doc_ids)
        if not ids:
            ids = [*question.gold_doc_ids, *draws.sample(names, chunks)]
            ids = draws.sample(list(dict.fromkeys(ids))[:chunks], min(chunks, len(set(ids))))
        shown = [documents[one] for one in ids if one in documents]
        neighbour = draws.choice([name for name in names if name not in ids] or names)
        asked = f"{question.question}\nAnswer with a few words from the documents."
        yield Task(tuple(map(_text, shown)), _text(documents[neighbour]), asked, "", question.answers, f1, 16)


def _multi_key(draws: random.Random, chunks: int) -> _Needles:
    names = draws.sample(PROJECTS, chunks)
    codes = _codes(draws, len(names))
    sentences = [f"The access code of the {name} project is {code}" for name, code in zip(names, codes, strict=True)]
    opening = f"The access code of the {names[0]} project is"
    return _Needles(sentences, f"What is the access code of the {names[0]} project?", opening, (codes[0],))


def _multi_value(draws: random.Random, chunks: int) -> _Needles:
    asked, *others = draws.sample(PROJECTS, 1 + chunks)
    codes = _codes(draws, _VALUES + len(others))
    names = [*[asked] * _VALUES, *others]
    sentences = [f"One access code of the {name} project is {code}" for name, code in zip(names, codes, strict=True)]
    question = f"List all three access codes of the {asked} project."
    return _Needles(sentences, question, f"The access codes of the {asked} project are", tuple(codes[:_VALUES]))


def _two_hop(draws: random.Random, chunks: int) -> _Needles:
    projects, houses = draws.sample(PROJECTS, chunks), draws.sample(PROJECTS, chunks)
    codes = _codes(draws, chunks)
    sentences = [
        f"The {project} project is kept in the {house} house" for project, house in zip(projects, houses, strict=True)
    ]
    sentences += [f"The access code of the {house} house is {code}" for house, code in zip(houses, codes, strict=True)]
    question = f"What is the access code of the house in which the {projects[0]} project is kept?"
    return _Needles(sentences, question, f"The {projects[0]} project is kept in the", (codes[0],))


NEEDLES: Mapping[str, Callable[[random.Random, int], _Needles]] = MappingProxyType(
    {"multi-key": _multi_key, "multi-value": _multi_value, "two-hop": _two_hop}
)
"""Kinds of needles: one of many codes, all codes of one project, and a code that two sentences lead to."""


def _codes(draws: random.Random, count: int) -> list[str]:
    return [str(code) for code in draws.sample(range(10_000, 100_000), count)]


def cut(text: str) -> str:
    """Return the text's first whole sentences, up to ``CHUNK_CHARACTERS``."""
    return text[:CHUNK_CHARACTERS].rpartition(". ")[0] + "."


def _text(document: Document) -> str:
    return f"{document.title}\n{document.text}" if document.title else document.text


def first(tasks: Iterator[Task], count: int) -> list[Task]:
    """Return the first tasks."""
    return list(islice(tasks, count))
