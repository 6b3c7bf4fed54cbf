"""Documents made up for a load test, and questions that they answer."""

from collections.abc import Iterator
from random import Random

import msgspec

SYLLABLES = "ba ce di fo gu ha je ki lo mu na pe qui ro su ta ve wi xo zu".split()  # noqa: SIM905
_PER_TOPIC = 4
_PER_BATCH = 50


class Document(msgspec.Struct, frozen=True):
    """One document as a batch carries it."""

    id: str
    title: str
    text: str


class SyntheticCorpus:
    """Documents of about ``words`` words, four about each made-up topic, and one question a topic.

    A question finds its own topic's documents: they share words that stand nowhere else. Equal seeds give equal texts,
    so a stack that has them already takes them in at no cost.
    """

    def __init__(self, documents: int, words: int, seed: int) -> None:
        self._draws = Random(f"{seed}/corpus")  # noqa: S311 - made-up text needs no secrecy
        self._words = words
        self.name = f"loadtest-{documents}x{words}-{seed}"
        topics = [f"{self._word(4)} {self._word(4)}" for _ in range(-(-documents // _PER_TOPIC))]
        self.questions = [f"What is known about {topic}?" for topic in topics]
        self.documents = [self.document(f"{number}", topics[number // _PER_TOPIC]) for number in range(documents)]

    def document(self, document_id: str, topic: str | None = None) -> Document:
        """One more document, about a topic of its own where none is given."""
        topic = topic or f"{self._word(4)} {self._word(4)}"
        sentences = [f"This is known about {topic}:"]
        count = 0
        while count < self._words:
            length = self._draws.randint(6, 14)
            words = [topic.split()[0], *(self._word(self._draws.randint(2, 3)) for _ in range(length))]
            sentences.append(" ".join(words).capitalize() + ".")
            count += length + 1
        return Document(document_id, topic, " ".join(sentences))

    def batches(self) -> Iterator[bytes]:
        """All documents as JSON lines, in bodies of a bounded size."""
        for begin in range(0, len(self.documents), _PER_BATCH):
            yield b"\n".join(msgspec.json.encode(document) for document in self.documents[begin : begin + _PER_BATCH])

    def _word(self, syllables: int) -> str:
        return "".join(self._draws.choice(SYLLABLES) for _ in range(syllables))
