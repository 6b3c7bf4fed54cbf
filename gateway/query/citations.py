"""Which passages an answer rests on, told from its words once it is complete.

The prompt asks for no reference marks: numbering the passages would change their text with their position, and with it
the KV that other prompts could use.
"""

import re
from collections.abc import Container, Iterator, Sequence, Set
from itertools import pairwise, zip_longest
from math import log
from typing import NamedTuple

from gateway.wire.reply import TextSpan

LEAST_OVERLAP = 0.5
"""Share of a sentence's weight that a passage must hold. docs/retrieval.md has the measurement of both shares."""
LEAST_OF_BEST = 0.8
"""Share of the best passage's overlap that another one must reach to stand beside it."""
_ALONE = 0.5
"""Credit for a word that a passage has, but beside neither of its neighbours in the sentence."""
_ASKED = 0.25
"""Weight of a word of the question: every passage that was found is likely to have it."""
MOST_CHARACTERS = 65_536
"""Characters of an answer that are compared with the passages. Later ones are not cited."""
MOST_SPANS = 100
"""Sentences that are listed of those that rest on one passage: the first ones."""
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


class Support(NamedTuple):
    """A passage that an answer rests on.

    ``passage`` counts the given passages from 0. ``spans`` are the answer's sentences that rest on it. ``overlap`` is
    the share of the best one that the passage holds, from 0 to 1.
    """

    passage: int
    overlap: float
    spans: tuple[TextSpan, ...]


def supports(answer: str, question: str, passages: Sequence[str]) -> tuple[Support, ...]:
    """Find the passages that the sentences of an answer rest on, in the order of ``passages``.

    A sentence's words weigh the more, the fewer passages have them, and less if the question has them too. Stop words
    do not count. A passage holds a word fully if it has the next or the previous word of the sentence beside it.

    Takes time for each word of the answer and each passage that has it: of long answers, hundreds of milliseconds.
    """
    texts = _Passages([_words(passage) for passage in passages])
    asked = set(_words(question))
    best: dict[int, float] = {}
    spans: dict[int, list[TextSpan]] = {}
    for span, words in _sentences(answer[:MOST_CHARACTERS]):
        overlaps = texts.overlaps(words, asked)
        least = max(LEAST_OVERLAP, LEAST_OF_BEST * max(overlaps.values(), default=0.0))
        for passage, overlap in overlaps.items():
            if overlap >= least:
                best[passage] = max(overlap, best.get(passage, 0.0))
                held = spans.setdefault(passage, [])
                if len(held) < MOST_SPANS:
                    held.append(span)
    return tuple(Support(passage, best[passage], tuple(held)) for passage, held in sorted(spans.items()))


class _Passages:
    """Which passages have each word, and each pair of neighbours."""

    def __init__(self, passages: Sequence[Sequence[str]]) -> None:
        self._count = len(passages)
        self._single: dict[str, set[int]] = {}
        self._pairs: dict[tuple[str, str], set[int]] = {}
        for number, words in enumerate(passages):
            for word in words:
                self._single.setdefault(word, set()).add(number)
            for pair in pairwise(words):
                self._pairs.setdefault(pair, set()).add(number)

    def overlaps(self, words: Sequence[str], asked: Container[str]) -> dict[int, float]:
        """The share of a sentence's weight that each passage holds which has any of it."""
        weights = {word: self._weight(word, asked) for word in dict.fromkeys(words)}
        held: dict[int, float] = {}
        before: Set[int] = frozenset()
        for word, pair in zip_longest(words, pairwise(words)):
            after: Set[int] = self._pairs.get(pair, frozenset())
            beside = before | after
            for passage in beside:
                held[passage] = held.get(passage, 0.0) + weights[word]
            for passage in self._single.get(word, frozenset()) - beside:
                held[passage] = held.get(passage, 0.0) + weights[word] * _credit(word)
            before = after
        whole = sum(weights[word] for word in words)
        return {passage: weight / whole for passage, weight in held.items()}

    def _weight(self, word: str, asked: Container[str]) -> float:
        having = len(self._single.get(word, ()))
        return (_ASKED if word in asked else 1.0) * log(1 + self._count / max(1, having))


def _words(text: str) -> list[str]:
    return [word for word in _WORD.findall(text.casefold()) if word not in _STOP_WORDS]


def _sentences(answer: str) -> Iterator[tuple[TextSpan, list[str]]]:
    """The sentences that have words, with them."""
    start, begun, words = 0, 0, []
    held: list[tuple[TextSpan, list[str]]] = []
    ends = [found.end() for found in _SENTENCE_END.finditer(answer)]
    for end in [*ends, len(answer)]:
        # Only what is new: a sentence that joins its neighbour is not cut again.
        words += _words(answer[begun:end])
        begun = end
        if len(words) >= _SHORT or end == len(answer):
            held.append((TextSpan(start, end), words))
            start, words = end, []
    if len(held) > 1 and len(held[-1][1]) < _SHORT:
        (last, words), (before, more) = held.pop(), held.pop()
        held.append((TextSpan(before.start, last.end), more + words))
    for span, words in held:
        if words:
            text = answer[span.start : span.end]
            start = span.start + len(text) - len(text.lstrip())
            yield TextSpan(start, start + len(text.strip())), words


def _credit(word: str) -> float:
    """Credit for a word that stands alone in a passage. A single character of an unspaced script says nothing."""
    return 0.0 if len(word) == 1 and not word.isascii() else _ALONE
