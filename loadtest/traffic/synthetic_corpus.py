"""Synthetic documents, and questions about them."""

from collections.abc import Iterator
from random import Random

import msgspec

SYLLABLES = "ba ce di fo gu ha je ki lo mu na pe qui ro su ta ve wi xo zu".split()  # noqa: SIM905
_PER_BATCH = 50


class Document(msgspec.Struct, frozen=True):
    """A document as a line of a batch."""

    id: str
    title: str
    text: str


class SyntheticCorpus:
    """Documents of about ``words`` words, ``per_topic`` per synthetic topic, and one question per topic.

    A question shares words only with the documents of its topic, so it finds them. Equal seeds give equal texts, so a
    stack that already has them skips the ingestion.
    """

    def __init__(self, documents: int, words: int, seed: int, per_topic: int = 4) -> None:
        self._draws = Random(f"{seed}/corpus")  # noqa: S311 - not for security
        self._words = words
        self.name = f"loadtest-{documents}x{words}-{seed}"
        topics = [f"{self._word(4)} {self._word(4)}" for _ in range(-(-documents // per_topic))]
        self.questions = [f"What is known about {topic}?" for topic in topics]
        self.documents = [self.document(f"{number}", topics[number // per_topic]) for number in range(documents)]

    def document(self, document_id: str, topic: str | None = None) -> Document:
        """Create another document, about a new topic if none is given."""
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
        """Yield all documents as JSON lines, in batches of 50."""
        for begin in range(0, len(self.documents), _PER_BATCH):
            yield b"\n".join(msgspec.json.encode(document) for document in self.documents[begin : begin + _PER_BATCH])

    def _word(self, syllables: int) -> str:
        return "".join(self._draws.choice(SYLLABLES) for _ in range(syllables))
