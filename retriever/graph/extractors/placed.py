"""Triplets that are known of a chunk as a whole, and which of its sentences states each of them."""

from collections.abc import Iterable
from functools import cache
from itertools import chain

import spacy
from spacy.language import Language

from protocol.graph import Triplet
from retriever.graph.extractors.base import Statement
from retriever.graph.name_finder import NameFinder
from retriever.graph.names import name_key


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
    sentences = [(*span, finder.found_in(text[slice(*span)])) for span in _sentences(text)]
    stated: dict[tuple[int, int], list[Triplet]] = {}
    for triplet in wanted:
        ends = {keys[triplet.head], keys[triplet.tail]}
        spans = ((start, end) for start, end, found in sentences if ends <= found)
        stated.setdefault(next(spans, (0, len(text))), []).append(triplet)
    return [statement_of(start, end, found) for (start, end), found in sorted(stated.items())]


def statement_of(start: int, end: int, triplets: Iterable[Triplet], names: Iterable[str] = ()) -> Statement:
    """Return the statement of these triplets. It names their ends, and then ``names``."""
    once = tuple(dict.fromkeys(triplets))
    ends = chain.from_iterable((triplet.head, triplet.tail) for triplet in once)
    return Statement(start, end, tuple(dict.fromkeys([*ends, *names])), once)


def _sentences(text: str) -> list[tuple[int, int]]:
    return [(sentence.start_char, sentence.end_char) for sentence in _splitter()(text).sents]


@cache
def _splitter() -> Language:
    """Splits at full stops, but not behind abbreviations. It has no model."""
    splitter = spacy.blank("en")
    splitter.add_pipe("sentencizer")
    return splitter
