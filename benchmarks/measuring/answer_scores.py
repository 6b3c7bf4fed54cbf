"""How well an answer matches the right ones: exact match and F1, by the definitions of SQuAD's official evaluation.

Both are the best over the right answers (Rajpurkar et al., 2016, section 6.1). Texts are compared in lower case,
without ASCII punctuation, articles and extra white space. Words are what white space parts: this is for languages that
part them so.
"""

import re
import string
from collections import Counter
from collections.abc import Sequence

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalised(text: str) -> str:
    """The text as it is compared: words with one space between them."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split())


def exact_match(answer: str, right: Sequence[str]) -> bool:
    """Whether the answer is one of the right ones."""
    return normalised(answer) in map(normalised, right)


def f1(answer: str, right: Sequence[str]) -> float:
    """The harmonic mean of precision and recall of the answer's words, from 0 to 1; 0 where nothing is right.

    With n words in common, counted as often as both have them, it is 2n over the words of both. Of two answers without
    words it is 1, and where only one has none, 0, as in the evaluation of SQuAD 2.0.
    """
    return max((_f1(normalised(answer).split(), normalised(one).split()) for one in right), default=0.0)


def holds_answer(text: str, right: Sequence[str]) -> bool:
    """Whether the words of a right answer stand in the text one after another.

    Of an answer this is the best subspan match of "Lost in the middle" (Liu et al., 2023, section 2).
    """
    words = f" {normalised(text)} "
    return any(f" {normalised(one)} " in words for one in right if normalised(one))


def _f1(answer: Sequence[str], right: Sequence[str]) -> float:
    if not answer or not right:
        return float(answer == right)
    common = (Counter(answer) & Counter(right)).total()
    return 2 * common / (len(answer) + len(right))
