"""Needles: real documents that each hide a code, and questions that ask for it.

Small models answer these well, where their answers to real questions are poor. All documents of a prompt hide a code in
a sentence of the same form, so an answer is right only if the model finds the sentence about the asked name (multi-key
retrieval, as in RULER, Hsieh et al. 2024).
"""

import random
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from examine.composing.tasks import PROJECTS, hide
from ragtree_lab.workloads.datasets import DOCUMENTS_FILE, Document, Question, check_file
from ragtree_lab.workloads.json_lines import JsonLines

NEEDLES = "needles"
"""The name of the set, which may be followed by that of the corpus: needles@squad."""

_DOCUMENTS = 2000
_SHORTEST = 300
"""Characters of a document. In a shorter one the code would stand out."""


class NeedleSet:
    """The first documents of ``corpus``, each with the code of another project at a random place, and their questions.

    The same seed gives the same set. Raises ConfigError if the corpus is missing.
    """

    def __init__(self, data: Path, corpus: str, seed: int) -> None:
        self._file = data / corpus / DOCUMENTS_FILE
        check_file(self._file, f"corpus {corpus!r}", data)
        self.name = f"{NEEDLES}@{corpus}"
        self.corpus = f"{NEEDLES}-{corpus}-{seed}"
        self._seed = seed

    def documents(self) -> Iterator[Document]:
        """Iterate over the documents with their codes."""
        return (document for document, _ in self._hidden())

    def questions(self) -> Iterator[Question]:
        """Iterate over the questions, one for each document."""
        return (question for _, question in self._hidden())

    def _hidden(self) -> Iterator[tuple[Document, Question]]:
        draws = random.Random(f"needles {self._seed}")  # noqa: S311 - a repeatable draw
        names = list(PROJECTS)
        draws.shuffle(names)
        codes = draws.sample(range(10_000, 100_000), len(names))
        documents = (document for _, document in JsonLines(self._file, Document) if len(document.text) >= _SHORTEST)
        for name, code, document in zip(names, codes, islice(documents, _DOCUMENTS), strict=False):
            text = hide(draws, document.text, [f"The access code of the {name} project is {code}"])
            hiding = Document(document.doc_id, text, document.title)
            about = f" in the text about {document.title.replace('_', ' ')}" if document.title else ""
            question = f"What is the access code of the {name} project{about}?"
            yield hiding, Question(document.doc_id, question, (document.doc_id,), (str(code),))
