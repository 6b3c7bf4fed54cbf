"""Question sets on disk, as gzipped JSON lines: docs with doc_id, title and text, and questions."""

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
    """A question, the documents that hold its answer, and its right ``answers``."""

    qid: str
    question: str
    gold_doc_ids: tuple[str, ...] = ()
    answers: tuple[str, ...] = ()


class Dataset:
    """The questions of one folder, and its corpus or that of the folder ``corpus``.

    Raises ConfigError if a file is missing, and on reading an invalid line.
    """

    def __init__(self, root: Path, name: str, corpus: str = "") -> None:
        self.name = name
        self.corpus = corpus or name
        self.files = (root / name / QUESTIONS_FILE, root / self.corpus / DOCUMENTS_FILE)
        for file in self.files:
            if not file.is_file():
                raise ConfigError(
                    f"no data set {name!r} at {root}: {file} is missing; give the folder of the sets with --data",
                    param="data",
                )

    def documents(self) -> Iterator[Document]:
        """Iterate over the corpus."""
        return (document for _, document in JsonLines(self.files[1], Document))

    def questions(self) -> Iterator[Question]:
        """Iterate over the questions, in the file's order."""
        return (question for _, question in JsonLines(self.files[0], Question))
