"""Synthetic documents without repeated text, so that nothing can hit a cache."""

import random

import msgspec

SYLLABLES = "ba ce di fo gu ha je ki lo mu na pe qui ro su ta ve wi xo zu".split()  # noqa: SIM905


class SyntheticCorpus:
    """Groups of ``group_size`` documents of about ``words`` words on a synthetic subject, with one question per group.

    A question finds its own group: subject and documents share words that no other group has.
    """

    def __init__(self, groups: int, group_size: int, words: int, seed: int) -> None:
        self._random = random.Random(seed)  # noqa: S311 - made-up text needs no secrecy
        self._words = words
        subjects = [f"{self._word(4)} {self._word(4)}" for _ in range(groups)]
        self.questions = [f"What is known about {subject}?" for subject in subjects]
        self._documents = [
            {"id": f"{group}-{number}", "title": subject, "text": self._text(subject)}
            for group, subject in enumerate(subjects)
            for number in range(group_size)
        ]

    def json_lines(self) -> bytes:
        """Return the documents as a batch."""
        return b"".join(msgspec.json.encode(document) + b"\n" for document in self._documents)

    def _text(self, subject: str) -> str:
        sentences = [f"This is known about {subject}:"]
        first_name, _ = subject.split()
        count = 0
        while count < self._words:
            length = self._random.randint(6, 14)
            words = [first_name, *(self._word(self._random.randint(2, 3)) for _ in range(length))]
            sentences.append(" ".join(words).capitalize() + ".")
            count += length + 1
        return " ".join(sentences)

    def _word(self, syllables: int) -> str:
        return "".join(self._random.choice(SYLLABLES) for _ in range(syllables))
