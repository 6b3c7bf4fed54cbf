"""Rankings of documents as trec_eval reads them, and their scores."""

from collections.abc import Iterable, Sequence
from statistics import fmean

import ir_measures
from ir_measures import R, nDCG


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


def mean_capped_recall(gold: Sequence[Sequence[str]], found: Sequence[Sequence[str]], depth: int) -> float:
    """Return the mean share of gold documents among the first ``depth`` different ones.

    No more than ``depth`` can be among them, so a question with more counts as one with ``depth``: the capped recall of
    BEIR (Thakur et al., 2021). A question's lists of documents have the same place, and each has a gold document.
    """
    return fmean(
        len(set(documents).intersection(list(dict.fromkeys(ranked))[:depth])) / min(depth, len(set(documents)))
        for documents, ranked in zip(gold, found, strict=True)
    )


def mean_recall_and_gain(gold: Sequence[Sequence[str]], found: Sequence[Sequence[str]]) -> tuple[float, float]:
    """Return recall@5 and nDCG@10, means over the questions. A question's lists of documents have the same place."""
    judged = trec_gold(gold)
    recall = ir_measures.calc_aggregate([R @ 5], judged, trec_run(documents[:5] for documents in found))[R @ 5]
    gain = ir_measures.calc_aggregate([nDCG @ 10], judged, trec_run(found))[nDCG @ 10]
    return recall, gain
