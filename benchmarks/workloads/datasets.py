"""Question sets on disk, as gzipped JSON lines: docs, which have doc_id, title and text, and questions."""

from collections.abc import Iterator
from pathlib import Path

import msgspec

from benchmarks.workloads.traces import JsonLines
from protocol.errors import ConfigError

QUESTIONS_FILE = "questions.jsonl.gz"
DOCUMENTS_FILE = "docs.jsonl.gz"


class Document(msgspec.Struct, frozen=True):
    """A document of the corpus."""

    doc_id: str
    text: str
    title: str | None = None


class Question(msgspec.Struct, frozen=True):
    """A question, the documents that hold its answer, and ``answers``, any one of which is right."""

    qid: str
    question: str
    gold_doc_ids: tuple[str, ...] = ()
    answers: tuple[str, ...] = ()


class Dataset:
    """The questions of one folder of a collection of question sets, and its corpus or that of the folder ``corpus``.

    Raises ConfigError when a file is not there; reading raises it for a broken line.
    """

    def __init__(self, root: Path, name: str, corpus: str = "") -> None:
        self.name = name
        self.corpus = corpus or name
        self.files = (root / name / QUESTIONS_FILE, root / self.corpus / DOCUMENTS_FILE)
        for file in self.files:
            if not file.is_file():
                raise ConfigError(f"no data set {name!r} at {root}: {file} is missing", param="data")

    def documents(self) -> Iterator[Document]:
        """The corpus."""
        return (document for _, document in JsonLines(self.files[1], Document))

    def questions(self) -> Iterator[Question]:
        """The questions, in the file's order."""
        return (question for _, question in JsonLines(self.files[0], Question))
