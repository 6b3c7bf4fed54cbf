"""Rankings of documents as trec_eval reads them, and their scores."""

from collections.abc import Iterable, Sequence

import ir_measures


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
