"""Which passages an answer rests on, told from its words once it is complete.

The prompt asks for no reference marks: numbering the passages would change their text with their position, and with it
the KV that other prompts could use.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise, zip_longest
from math import log
from typing import NamedTuple

LEAST_OVERLAP = 0.5
"""Share of a sentence's weight that a passage must hold. docs/retrieval.md has the measurement behind both shares."""
LEAST_OF_BEST = 0.8
"""Share of the best passage's overlap that another one must reach to stand beside it."""
_ALONE = 0.5
"""Credit for a word that a passage has, but beside neither of its neighbours in the sentence."""
_ASKED = 0.25
"""Weight of a word of the question: every passage that was found is likely to have it."""
_SHORT = 3
"""A sentence with fewer words than this joins its neighbour."""

_UNSPACED = r"\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\U00020000-\U0003ffff"
# In scripts without spaces between words, each character counts as one.
_WORD = re.compile(rf"[{_UNSPACED}]|[^\W_{_UNSPACED}]+")
_SENTENCE_END = re.compile(r"[.!?][\"')\]]*(?=\s)|[。！？]|\n")
_ENGLISH = (
    "a about after all also an and any are as at be because been before but by can could did do does for from had "
    "has have he her his how i if in into is it its me more most my no not of on or our out over she so some such "
    "t than that the their them then there these they this those to up was we were what when where which while "
    "who whose why will with would yes you your"
)
_CHINESE_JAPANESE_KOREAN = "的了是在和与也有为我你他她它这那就都而及并はがをにのでともだたるして은는이가을를의에"
_STOP_WORDS = frozenset([*_ENGLISH.split(), *_CHINESE_JAPANESE_KOREAN])


class Span(NamedTuple):
    """A part of an answer: characters from ``start`` up to ``end``."""

    start: int
    end: int


class Support(NamedTuple):
    """A passage that an answer rests on.

    ``passage`` counts the given passages from 0. ``spans`` are the answer's sentences that rest on it. ``overlap`` is
    the share of the best of them that the passage holds, from 0 to 1.
    """

    passage: int
    overlap: float
    spans: tuple[Span, ...]


def supports(answer: str, question: str, passages: Sequence[str]) -> tuple[Support, ...]:
    """Find the passages that the sentences of an answer rest on, in the order of ``passages``.

    A sentence's words weigh the more, the fewer passages have them, and less if the question has them too. Stop words
    do not count. A passage holds a word fully if it has the next or the previous word of the sentence beside it.
    """
    texts = [_Words(_words(passage)) for passage in passages]
    asked = set(_words(question))
    found: dict[int, list[tuple[float, Span]]] = {}
    for span, words in _sentences(answer):
        weights = _weights(set(words), asked, texts)
        overlaps = [_overlap(words, weights, text) for text in texts]
        least = max(LEAST_OVERLAP, LEAST_OF_BEST * max(overlaps, default=0.0))
        for passage, overlap in enumerate(overlaps):
            if overlap >= least:
                found.setdefault(passage, []).append((overlap, span))
    return tuple(
        Support(passage, max(overlap for overlap, _ in held), tuple(span for _, span in held))
        for passage, held in sorted(found.items())
    )


class _Words:
    """The words of a passage, and the pairs of neighbours among them."""

    def __init__(self, words: Sequence[str]) -> None:
        self.single = frozenset(words)
        self.pairs = frozenset(pairwise(words))


def _words(text: str) -> list[str]:
    return [word for word in _WORD.findall(text.casefold()) if word not in _STOP_WORDS]


def _sentences(answer: str) -> Iterator[tuple[Span, list[str]]]:
    """The sentences that have words, with them."""
    start, held = 0, []
    ends = [found.end() for found in _SENTENCE_END.finditer(answer)]
    for end in [*ends, len(answer)]:
        words = _words(answer[start:end])
        if len(words) >= _SHORT or end == len(answer):
            held.append((Span(start, end), words))
            start = end
    if len(held) > 1 and len(held[-1][1]) < _SHORT:
        (last, words), (before, more) = held.pop(), held.pop()
        held.append((Span(before.start, last.end), more + words))
    for span, words in held:
        if words:
            text = answer[span.start : span.end]
            start = span.start + len(text) - len(text.lstrip())
            yield Span(start, start + len(text.strip())), words


def _weights(words: set[str], asked: set[str], texts: Sequence[_Words]) -> dict[str, float]:
    having = Counter(word for text in texts for word in text.single & words)
    return {word: (_ASKED if word in asked else 1.0) * log(1 + len(texts) / max(1, having[word])) for word in words}


def _overlap(words: Sequence[str], weights: dict[str, float], text: _Words) -> float:
    held, before = 0.0, False
    for word, pair in zip_longest(words, pairwise(words)):
        after = pair in text.pairs
        if before or after:
            held += weights[word]
        elif word in text.single:
            held += weights[word] * _credit(word)
        before = after
    return held / sum(weights[word] for word in words)


def _credit(word: str) -> float:
    """Credit for a word that stands alone in a passage. A single character of an unspaced script says nothing."""
    return 0.0 if len(word) == 1 and not word.isascii() else _ALONE
