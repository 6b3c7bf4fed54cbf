"""The question sets of a folder whose questions have known passages, and why the others are left out.

A set's passages are ``given`` if its questions name them. Otherwise a passage counts as gold if it is among the
question's own contexts and contains one of its answers as whole words, without case and punctuation (``answer``). Then
questions without such a passage are left out, and those with an answer of fewer than 3 characters, which many passages
contain by chance.

Only English documents and questions are read, where a set tells languages, because the graph's rules are English. Of a
set that tells the types of its questions, only those over several documents or steps are asked, if it has such.
"""

import random
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple, TypeVar

import msgspec

from protocol.errors import ConfigError
from ragtree_lab.workloads.datasets import DOCUMENTS_FILE, QUESTIONS_FILE, Dataset, Document, Question

Gold = Literal["given", "answer"]
"""How the gold passages of a set are known."""

NO_DOCUMENTS = "no documents"
NO_QUESTIONS = "no questions"
NO_GOLD = "no question has known passages"

_SEVERAL = ("Multi-document", "Multi-hop")
"""How the types of questions over several documents or steps begin."""

_Read = TypeVar("_Read", Document, Question)

_SHORTEST_ANSWER = 3
_WORD = re.compile(r"\w+")


class GraphSet:
    """The documents of one set, and its questions with their gold passages."""

    def __init__(self, name: str, gold: Gold, documents: Sequence[Document], questions: Sequence[Question]) -> None:
        self.name = name
        self.corpus = name
        self.gold = gold
        self._documents = documents
        self._questions = questions

    def documents(self) -> Iterator[Document]:
        """Iterate over the corpus."""
        return iter(self._documents)

    def questions(self) -> Iterator[Question]:
        """Iterate over the questions that have a gold passage, in the file's order."""
        return iter(self._questions)

    def evenly(self, count: int) -> list[Question]:
        """Return ``count`` questions at equal distances in the file; all if there are fewer."""
        total = len(self._questions)
        count = min(count, total)
        return [self._questions[number * total // count] for number in range(count)]

    def drawn(self, count: int, seed: int) -> "GraphSet":
        """Return a smaller set: ``count`` questions in a random order, all if there are fewer, and their documents.

        Those are the questions' gold documents and contexts, and as many others, among which a search can go wrong.
        More questions of the same seed begin with the same ones.
        """
        draws = random.Random(seed)  # noqa: S311 - a repeatable draw
        questions = draws.sample(self._questions, len(self._questions))[:count]
        needed = {name for one in questions for name in (*one.gold_doc_ids, *one.ctx_doc_ids)}
        others = [document.doc_id for document in self._documents if document.doc_id not in needed]
        kept = needed.union(draws.sample(others, min(len(needed), len(others))))
        documents = [document for document in self._documents if document.doc_id in kept]
        return GraphSet(self.name, self.gold, documents, questions)


class SetNames(NamedTuple):
    """The names of the sets that have documents and questions, and why each other one is left out."""

    complete: list[str]
    left_out: dict[str, str]


def set_names(data: Path, chosen: Sequence[str] = ()) -> SetNames:
    """Return the sets below ``data``, or the ``chosen`` ones among them. Raises ConfigError for an unknown one."""
    asked, stored = _folders_with(data, QUESTIONS_FILE), _folders_with(data, DOCUMENTS_FILE)
    known = sorted(asked | stored)
    if unknown := [name for name in chosen if name not in known]:
        raise ConfigError(f"no set {', '.join(unknown)} at {data}; the sets are {', '.join(known) or 'none'}", "set")
    names = list(dict.fromkeys(chosen)) or known
    left_out = {name: NO_QUESTIONS if name in stored else NO_DOCUMENTS for name in names if name not in asked & stored}
    return SetNames([name for name in names if name not in left_out], left_out)


def english_set(data: Path, name: str) -> GraphSet:
    """Read a set with all of its questions, whether passages are known or not.

    Raises ConfigError if it has no documents or no questions in English, and for an invalid line.
    """
    dataset = Dataset(data, name)
    documents, questions = _in_english(dataset.documents()), _in_english(dataset.questions())
    if not documents or not questions:
        raise ConfigError(f"the set {name} has no documents or no questions in English", "set")
    return GraphSet(name, "given", documents, questions)


def open_set(data: Path, name: str, *, of_all_types: bool = False) -> GraphSet | None:
    """Read a set that has documents and questions; return None if no question has known passages.

    ``of_all_types`` keeps those over one document or step, too. Raises ConfigError for an invalid line.
    """
    dataset = Dataset(data, name)
    documents = {document.doc_id: document for document in _in_english(dataset.documents())}
    questions = _in_english(dataset.questions())
    if not of_all_types:
        questions = [question for question in questions if question.type.startswith(_SEVERAL)] or questions
    gold: Gold = "given"
    found = list(_given(questions, documents))
    if not found:
        gold = "answer"
        found = list(_by_answer(questions, documents))
    return GraphSet(name, gold, list(documents.values()), found) if found else None


def _in_english(read: Iterable[_Read]) -> list[_Read]:
    return [one for one in read if one.lang in ("", "en")]


def _given(questions: Iterable[Question], documents: Mapping[str, Document]) -> Iterator[Question]:
    for question in questions:
        if question.gold_doc_ids and documents.keys() >= set(question.gold_doc_ids):
            yield question


def _by_answer(questions: Iterable[Question], documents: Mapping[str, Document]) -> Iterator[Question]:
    words: dict[str, str] = {}
    for question in questions:
        if any(len(answer.strip()) < _SHORTEST_ANSWER for answer in question.answers):
            continue
        answers = [_words(answer) for answer in question.answers]
        contexts = [name for name in dict.fromkeys(question.ctx_doc_ids) if name in documents]
        for name in contexts:
            if name not in words:
                words[name] = _words(documents[name].text)
        # An answer of punctuation alone has no words, and would be in every passage.
        gold = tuple(name for name in contexts if any(answer.strip() and answer in words[name] for answer in answers))
        if gold:
            yield msgspec.structs.replace(question, gold_doc_ids=gold)


def _words(text: str) -> str:
    """The words of a text, with a space before and behind each."""
    return f" {' '.join(_WORD.findall(text.casefold()))} "


def _folders_with(data: Path, file: str) -> set[str]:
    return {found.parent.name for found in data.glob(f"*/{file}")}
