"""The scores of one answer, and of its search.

Exact match and F1 are those of SQuAD's official evaluation. They and ROUGE-L take the best over all right answers
(Rajpurkar et al., 2016, section 6.1). Texts are compared in lower case, without ASCII punctuation, articles and extra
white space. Words are separated by white space, so the scores suit only languages that write it.

ROUGE-L is computed here, over these words. The package rouge-score would bring nltk, and its own words: it stems them
and drops all that is not ASCII.
"""

import re
import string
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

import ir_measures
import msgspec
from ir_measures import RR, R, nDCG

from examine.evaluation.answer import Answer
from examine.evaluation.question_file import AskedQuestion

MOST_RESULTS = 100
"""The API returns at most this number of results, so recall over them is recall over all."""

_RECALL, _RR, _NDCG = R @ MOST_RESULTS, RR, nDCG @ 10


class Scores(msgspec.Struct, frozen=True, kw_only=True):
    """Scores from 0 to 1. None where the question names no gold documents, or no right answers.

    - ``recall``: the share of the gold documents that are among the results'.
    - ``reciprocal_rank``: 1 / the rank of the first gold document, 0 without one. Its mean is MRR.
    - ``ndcg_at_10``: normalized discounted cumulative gain of the first 10 documents.
    - ``exact_match``, ``f1``, ``rouge_l``: of the answer, best over the right ones. ``holds_answer``: whether a right
      one is in it.
    - ``citation_precision``: the share of the cited documents that are gold; also None if nothing is cited.

    A document's rank is that of its best chunk.
    """

    recall: float | None = None
    reciprocal_rank: float | None = None
    ndcg_at_10: float | None = None
    citation_precision: float | None = None
    exact_match: float | None = None
    holds_answer: float | None = None
    f1: float | None = None
    rouge_l: float | None = None


def score(asked: AskedQuestion, answer: Answer) -> Scores:
    """Score an answer by what its question's line says."""
    ranking: dict[ir_measures.Measure, float] = {}
    if asked.document_ids:
        ranking = scores_of_ranking([_RECALL, _RR, _NDCG], asked.document_ids, answer.found)
    right = asked.answers
    return Scores(
        recall=ranking.get(_RECALL),
        reciprocal_rank=ranking.get(_RR),
        ndcg_at_10=ranking.get(_NDCG),
        citation_precision=_precision(answer.cited, asked.document_ids),
        exact_match=float(exact_match(answer.text, right)) if right else None,
        holds_answer=float(holds_answer(answer.text, right)) if right else None,
        f1=f1(answer.text, right) if right else None,
        rouge_l=rouge_l(answer.text, right) if right else None,
    )


def _precision(cited: Sequence[str], gold: Sequence[str]) -> float | None:
    if not cited or not gold:
        return None
    return sum(document in gold for document in cited) / len(cited)


def trec_run(found: Iterable[Sequence[str]]) -> dict[str, dict[str, float]]:
    """Return scores by document, by question. Each of ``found`` is best first; a document's best place counts."""
    return {
        str(place): {document: 1 / rank for rank, document in enumerate(dict.fromkeys(documents), start=1)}
        for place, documents in enumerate(found)
    }


def trec_gold(gold: Iterable[Sequence[str]]) -> dict[str, dict[str, int]]:
    """Return relevance by document, by question, where every gold document is as relevant."""
    return {str(place): dict.fromkeys(documents, 1) for place, documents in enumerate(gold)}


def scores_of_ranking(
    measures: Sequence[ir_measures.Measure], gold: Sequence[str], found: Sequence[str]
) -> dict[ir_measures.Measure, float]:
    """Return the measures of one question's ranking; all are 0 if nothing was found."""
    if not found:
        return dict.fromkeys(measures, 0.0)
    scored = ir_measures.calc_aggregate(measures, trec_gold([gold]), trec_run([found]))
    return {measure: float(scored[measure]) for measure in measures}


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
    return _best_overlap(answer, right, lambda words, others: (Counter(words) & Counter(others)).total())


def rouge_l(answer: str, right: Sequence[str]) -> float:
    """Return ROUGE-L's F-measure (Lin, 2004, section 3), from 0 to 1; 0 without right answers.

    With n words in the longest common subsequence, it is 2n over the number of words of both. Answers without words
    count as for F1.
    """
    return _best_overlap(answer, right, _longest_common_subsequence)


def holds_answer(text: str, right: Sequence[str]) -> bool:
    """Return whether the text contains the words of a right answer, in sequence.

    For an answer this is the best subspan match of "Lost in the middle" (Liu et al., 2023, section 2).
    """
    words = f" {normalised(text)} "
    return any(f" {normalised(one)} " in words for one in right if normalised(one))


def _best_overlap(answer: str, right: Sequence[str], common: Callable[[list[str], list[str]], int]) -> float:
    """Twice the ``common`` words over the number of words of both, best over the right answers."""
    words = normalised(answer).split()
    overlaps = [0.0]
    for others in (normalised(one).split() for one in right):
        length = len(words) + len(others)
        overlaps.append(2 * common(words, others) / length if length else 1.0)
    return max(overlaps)


def _longest_common_subsequence(one: Sequence[str], other: Sequence[str]) -> int:
    """Return its length, by a table of which only one row is kept."""
    lengths = [0] * (len(other) + 1)
    for word in one:
        before = 0
        for place, candidate in enumerate(other, start=1):
            longer = before + 1 if word == candidate else max(lengths[place], lengths[place - 1])
            before, lengths[place] = lengths[place], longer
    return lengths[-1]
