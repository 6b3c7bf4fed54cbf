"""Question sets on disk, as gzipped JSON lines: docs with doc_id, title and text, and questions."""

import random
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Protocol

import msgspec
from blake3 import blake3

from protocol.errors import ConfigError
from ragtree_lab.workloads.json_lines import JsonLines

QUESTIONS_FILE = "questions.jsonl.gz"
DOCUMENTS_FILE = "docs.jsonl.gz"


class Document(msgspec.Struct, frozen=True):
    """A document of the corpus. ``lang`` is its language, where the set says so."""

    doc_id: str
    text: str
    title: str | None = None
    lang: str = ""


class Question(msgspec.Struct, frozen=True):
    """A question, the documents that hold its answer, those of its whole context, and its right ``answers``.

    ``lang`` is its language and ``type`` its kind, where the set says so.
    """

    qid: str
    question: str
    gold_doc_ids: tuple[str, ...] = ()
    answers: tuple[str, ...] = ()
    ctx_doc_ids: tuple[str, ...] = ()
    lang: str = ""
    type: str = ""


class Questions(Protocol):
    """Questions and their corpus. ``name`` is the set's, ``corpus`` that of the collection which keeps the corpus."""

    name: str
    corpus: str

    def documents(self) -> Iterator[Document]:
        """Iterate over the corpus."""

    def questions(self) -> Iterator[Question]:
        """Iterate over the questions, always in the same order."""


def check_file(file: Path, what: str, root: Path) -> None:
    """Raise ConfigError if a file is missing that ``what`` needs. ``root`` is the folder of all sets."""
    if not file.is_file():
        raise ConfigError(
            f"no {what} at {root}: {file} is missing; give the folder of the sets with --data", param="data"
        )


class Dataset:
    """The questions of one folder, and its corpus or that of the folder ``corpus``.

    With ``one_in``, it has only about one in so many articles, always the same, and the questions about them. An
    article is the documents of one title. ``name`` and ``corpus`` then say so.

    Raises ConfigError if a file is missing, and on reading an invalid line.
    """

    def __init__(self, root: Path, name: str, corpus: str = "", one_in: int = 1) -> None:
        self.files = (root / name / QUESTIONS_FILE, root / (corpus or name) / DOCUMENTS_FILE)
        share = f"-one-in-{one_in}" if one_in > 1 else ""
        self.name = name + share
        self.corpus = (corpus or name) + share
        self._one_in = one_in
        for file in self.files:
            check_file(file, f"data set {name!r}", root)

    def documents(self) -> Iterator[Document]:
        """Iterate over the corpus."""
        return (document for _, document in JsonLines(self.files[1], Document) if self._has(document))

    def questions(self) -> Iterator[Question]:
        """Iterate over the questions, in the file's order."""
        for _, question in JsonLines(self.files[0], Question):
            if self._one_in == 1 or not question.gold_doc_ids or self._ids.intersection(question.gold_doc_ids):
                yield question

    @cached_property
    def _ids(self) -> frozenset[str]:
        return frozenset(document.doc_id for document in self.documents())

    def _has(self, document: Document) -> bool:
        if self._one_in == 1:
            return True
        article = blake3((document.title or document.doc_id).encode()).digest(8)
        return int.from_bytes(article, "big") % self._one_in == 0


def draw_with_gold(dataset: Dataset, sample: int, seed: int) -> list[Question]:
    """Draw ``sample`` questions that name a gold document; all if there are fewer.

    Raises ConfigError if there is none.
    """
    questions = [question for question in dataset.questions() if question.gold_doc_ids]
    if not questions:
        raise ConfigError(f"no question of {dataset.name!r} names the documents that hold its answer")
    if len(questions) > sample:
        return random.Random(seed).sample(questions, sample)  # noqa: S311 - a repeatable draw
    return questions
