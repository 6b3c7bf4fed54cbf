"""An extractor for tests: capitalised words are entities, and neighbours among them are related."""

import re
from collections.abc import Callable, Sequence
from itertools import pairwise

from protocol.graph import Triplet
from retriever.graph.extractors.base import Statement
from retriever.store.incoming import SourceText

_SENTENCE = re.compile(r"[^.]+\.?")
_NAME = re.compile(r"[A-Z][a-z]+")


class Capitals:
    """Calls ``before`` before each group of chunks is read."""

    def __init__(self, fingerprint: str = "capitals", before: Callable[[Sequence[SourceText]], None] | None = None):
        self.fingerprint = fingerprint
        self.before = before
        self.read = 0

    def extract(self, sources: Sequence[SourceText]) -> list[list[Statement]]:
        if self.before is not None:
            self.before(sources)
        self.read += len(sources)
        return [
            [
                Statement(match.start(), match.end(), names, tuple(Triplet(a, "by", b) for a, b in pairwise(names)))
                for match in _SENTENCE.finditer(source.text)
                if (names := tuple(dict.fromkeys(_NAME.findall(match[0]))))
            ]
            for source in sources
        ]

    def names_in(self, question: str) -> Sequence[str]:
        return list(dict.fromkeys(_NAME.findall(question)))

    def close(self) -> None:
        pass
