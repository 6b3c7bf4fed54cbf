"""Means of rankings' scores over many questions."""

from collections.abc import Sequence
from statistics import fmean

import ir_measures
from ir_measures import R, nDCG

from examine.evaluation.scores import trec_gold, trec_run


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
