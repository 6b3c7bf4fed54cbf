"""The scores of one answer."""

from collections.abc import Iterable, Sequence

import ir_measures
import msgspec
from ir_measures import RR, R, nDCG

from examine.evaluation.answer import Answer
from examine.evaluation.question_file import AskedQuestion
from examine.measuring.answer_scores import exact_match, f1, holds_answer, rouge_l

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
