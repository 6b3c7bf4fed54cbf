"""Triplets that are known of a chunk as a whole: which of its sentences states each.

They were uploaded for the chunk, alone or beside what an extractor finds in its text.
"""

from collections.abc import Iterable, Sequence
from functools import cache
from itertools import chain

import spacy
from spacy.language import Language

from protocol.graph import Triplet
from retriever.graph.extractors.base import Extractor, Statement
from retriever.graph.names import NameFinder, name_key
from retriever.store.incoming import SourceText

_GIVEN_VERSION = 1
"""Raise it when triplets are placed otherwise."""


class GivenExtractor:
    """Reads no text, except for which of its sentences states a triplet."""

    fingerprint = f"given-{_GIVEN_VERSION}"

    def extract(self, sources: Sequence[SourceText]) -> list[list[Statement]]:
        """Return the statements of each chunk's triplets."""
        return [placed(source.text, source.triplets) for source in sources]

    def close(self) -> None:
        """Nothing to end."""


def placed(text: str, triplets: Iterable[Triplet]) -> list[Statement]:
    """Return the statements of a chunk that state its triplets, in the order of its text.

    A triplet belongs to the first sentence that names both of its ends. Otherwise it belongs to one statement that is
    the whole chunk.
    """
    wanted = dict.fromkeys(triplets)
    if not wanted:
        return []
    keys = {end: name_key(end) for triplet in wanted for end in (triplet.head, triplet.tail)}
    finder = NameFinder(keys.values())
    spans = [(sentence.start_char, sentence.end_char) for sentence in _splitter()(text).sents]
    sentences = [(start, end, finder.found_in(text[start:end])) for start, end in spans]
    stated: dict[tuple[int, int], list[Triplet]] = {}
    for triplet in wanted:
        ends = {keys[triplet.head], keys[triplet.tail]}
        stating = ((start, end) for start, end, found in sentences if ends <= found)
        stated.setdefault(next(stating, (0, len(text))), []).append(triplet)
    return [statement_of(start, end, found) for (start, end), found in sorted(stated.items())]


def statement_of(start: int, end: int, triplets: Iterable[Triplet], names: Iterable[str] = ()) -> Statement:
    """Return the statement of these triplets. It names their ends, and then ``names``."""
    once = tuple(dict.fromkeys(triplets))
    ends = chain.from_iterable((triplet.head, triplet.tail) for triplet in once)
    return Statement(start, end, tuple(dict.fromkeys([*ends, *names])), once)


@cache
def _splitter() -> Language:
    """Splits at full stops, but not after abbreviations. It has no model."""
    splitter = spacy.blank("en")
    splitter.add_pipe("sentencizer")
    return splitter


class WithGiven:
    """Adds each chunk's triplets to what an extractor finds in its text.

    The fingerprint is the extractor's. That is enough, because the triplets of a chunk never change.
    """

    def __init__(self, extractor: Extractor) -> None:
        self._extractor = extractor

    @property
    def fingerprint(self) -> str:
        """Identifies what the extractor finds."""
        return self._extractor.fingerprint

    def extract(self, sources: Sequence[SourceText]) -> list[Sequence[Statement] | None]:
        """Return each chunk's statements; None if it cannot be read and has no triplets. Raises as the extractor."""
        read = self._extractor.extract([source._replace(triplets=()) for source in sources])
        return [
            _joined(found or (), placed(source.text, source.triplets)) if source.triplets else found
            for source, found in zip(sources, read, strict=True)
        ]

    def close(self) -> None:
        """End what the extractor has started."""
        self._extractor.close()


def _joined(found: Iterable[Statement], given: Iterable[Statement]) -> list[Statement]:
    """All of these statements, in the order of the text, those of the same characters as one."""
    joined = {(statement.start, statement.end): statement for statement in found}
    for statement in given:
        span = statement.start, statement.end
        same = joined.get(span, Statement(*span, ()))
        joined[span] = statement_of(*span, (*same.triplets, *statement.triplets), same.names)
    return [joined[span] for span in sorted(joined)]
