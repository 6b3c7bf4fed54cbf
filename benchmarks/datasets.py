"""Question sets on disk, as gzipped JSON lines: docs (doc_id, title, text) and questions (question, gold_doc_ids)."""

import gzip
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import msgspec

from protocol.errors import ConfigError

T = TypeVar("T")


class Document(msgspec.Struct, frozen=True):
    """A document of the corpus."""

    doc_id: str
    text: str
    title: str | None = None


class Question(msgspec.Struct, frozen=True):
    """A question and the documents that hold its answer."""

    qid: str
    question: str
    gold_doc_ids: tuple[str, ...] = ()


class Dataset:
    """One folder of a collection of question sets. Raises ConfigError when it is not there or not whole."""

    def __init__(self, root: Path, name: str) -> None:
        self.name = name
        self._folder = root / name
        for file in ("docs.jsonl.gz", "questions.jsonl.gz"):
            if not (self._folder / file).is_file():
                raise ConfigError(f"no data set {name!r} at {root}: {self._folder / file} is missing", param="data")

    def documents(self) -> Iterator[Document]:
        """The corpus."""
        yield from self._read("docs.jsonl.gz", msgspec.json.Decoder(Document))

    def questions(self) -> Iterator[Question]:
        """The questions, in the file's order."""
        yield from self._read("questions.jsonl.gz", msgspec.json.Decoder(Question))

    def _read(self, file: str, decoder: msgspec.json.Decoder[T]) -> Iterator[T]:
        with gzip.open(self._folder / file, "rb") as lines:
            for line in lines:
                yield decoder.decode(line)
