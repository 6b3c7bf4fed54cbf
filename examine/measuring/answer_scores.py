"""Scores of answers: exact match and F1, as defined by SQuAD's official evaluation, and ROUGE-L.

All take the best over all right answers (Rajpurkar et al., 2016, section 6.1). Texts are compared in lower case,
without ASCII punctuation, articles and extra white space. Words are separated by white space, so the scores suit only
languages that write it.

ROUGE-L is computed here, over these words. The package rouge-score would bring nltk, and its own words: it stems them
and drops all that is not ASCII.
"""

import re
import string
from collections import Counter
from collections.abc import Sequence

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalised(text: str) -> str:
    """Return the text for comparison: normalised words, separated by one space."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split())


def exact_match(answer: str, right: Sequence[str]) -> bool:
    """Return whether the answer equals a right one."""
    return normalised(answer) in map(normalised, right)


def f1(answer: str, right: Sequence[str]) -> float:
    """Return the F1 of the answer's words, from 0 to 1; 0 without right answers.

    With n common words (counted as often as both have them), F1 is 2n over the number of words of both. It is 1 for two
    answers without words, and 0 if only one has none, as in the evaluation of SQuAD 2.0.
    """
    return max((_f1(normalised(answer).split(), normalised(one).split()) for one in right), default=0.0)


def rouge_l(answer: str, right: Sequence[str]) -> float:
    """Return ROUGE-L's F-measure (Lin, 2004, section 3), from 0 to 1; 0 without right answers.

    With n words in the longest common subsequence, it is 2n over the number of words of both. Answers without words
    count as for F1.
    """
    return max((_rouge_l(normalised(answer).split(), normalised(one).split()) for one in right), default=0.0)


def holds_answer(text: str, right: Sequence[str]) -> bool:
    """Return whether the text contains the words of a right answer, in sequence.

    For an answer this is the best subspan match of "Lost in the middle" (Liu et al., 2023, section 2).
    """
    words = f" {normalised(text)} "
    return any(f" {normalised(one)} " in words for one in right if normalised(one))


def _f1(answer: Sequence[str], right: Sequence[str]) -> float:
    if not answer or not right:
        return float(answer == right)
    common = (Counter(answer) & Counter(right)).total()
    return 2 * common / (len(answer) + len(right))


def _rouge_l(answer: Sequence[str], right: Sequence[str]) -> float:
    if not answer or not right:
        return float(answer == right)
    return 2 * _longest_common_subsequence(answer, right) / (len(answer) + len(right))


def _longest_common_subsequence(one: Sequence[str], other: Sequence[str]) -> int:
    """Return its length, by a table of which only one row is kept."""
    lengths = [0] * (len(other) + 1)
    for word in one:
        before = 0
        for place, candidate in enumerate(other, start=1):
            longer = before + 1 if word == candidate else max(lengths[place], lengths[place - 1])
            before, lengths[place] = lengths[place], longer
    return lengths[-1]
