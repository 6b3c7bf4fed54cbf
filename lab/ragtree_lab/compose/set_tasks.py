"""What benchmarks ask of composed prompts beside the gate's needles: the texts and questions of sets."""

import random
from collections.abc import Iterable, Iterator
from itertools import cycle
from pathlib import Path

from examine.composing.tasks import CHUNK_CHARACTERS, NEEDLES, Probe, Task, cut, needle_tasks
from examine.evaluation.scores import f1
from protocol.errors import ConfigError
from ragtree_lab.workloads.datasets import Dataset, Document


def chunk_texts(data: Path, corpus: str) -> list[str]:
    """Return the beginnings of a corpus's documents, those that fill a chunk. Raises ConfigError if it is missing."""
    texts = [document.text for document in Dataset(data, corpus).documents()]
    return [cut(text) for text in texts if len(text) >= CHUNK_CHARACTERS]


def long_texts(texts: Iterable[str], characters: int) -> list[str]:
    """Return texts joined in order, until each has so many characters."""
    found, joined = [], ""
    for text in texts:
        joined = f"{joined} {text}"
        if len(joined) > characters:
            found.append(joined.strip())
            joined = ""
    return found


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
        text = f"{question.question}\nAnswer with a few words from the documents."
        asked = Probe(text, "", question.answers, f1, 16)
        yield Task(tuple(map(_text, shown)), _text(documents[neighbour]), (asked,))


def auxiliary_tasks(data: Path, corpus: str, chunks: int, seed: int) -> Iterator[Task]:
    """Endless tasks to train an auxiliary model on: needles of all kinds, and the questions of a set, in turn.

    Raises ConfigError if the set is missing.
    """
    texts = chunk_texts(data, corpus)
    needles = [needle_tasks(kind, texts, chunks, seed) for kind in NEEDLES]
    asked = cycle(set_tasks(data, corpus, chunks, seed))
    while True:
        for source in (*needles, asked):
            yield next(source)


def _text(document: Document) -> str:
    return f"{document.title}\n{document.text}" if document.title else document.text
