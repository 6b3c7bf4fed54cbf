"""Recall: how well the kinds of search find the documents that answer questions.

The corpus is ingested once into a folder that is kept, so later runs embed nothing. Every question is searched by each
kind with the shipped retriever, and by comparison with every stored embedding (``exact``), which is the baseline of the
dense index.

Limits: documents are found by their chunks, and questions must name their gold documents.
"""

from collections.abc import Sequence
from contextlib import closing
from functools import partial
from pathlib import Path

import msgspec

from examine.measuring import Progress
from examine.measuring.statistics import percentile
from protocol.retrieval import SearchKind
from ragtree_lab.measuring.exact_search import ExactSearch
from ragtree_lab.measuring.recalls import mean_recall_and_gain
from ragtree_lab.measuring.searches import TOP_K, Search, ask_in_turn, search_of
from ragtree_lab.workloads.corpus_store import ingest_corpus
from ragtree_lab.workloads.datasets import Dataset, draw_with_gold
from retriever.build import build_retriever
from retriever.settings import RetrieverSettings

EXACT = "exact"


class ByKind(msgspec.Struct, frozen=True, omit_defaults=True):
    """A figure by kind of search, and of exact dense search. Absent for a kind that was not measured."""

    dense: float | None = None
    sparse: float | None = None
    hybrid: float | None = None
    exact: float | None = None


class RecallResult(msgspec.Struct, frozen=True):
    """Figures of each search.

    ``recall_at_5`` is the share of a question's gold documents that are among the documents of the first 5 chunks,
    ``ndcg_at_10`` the normalized discounted cumulative gain of the documents of the first 10. Both are means over all
    questions. Search times include embedding the question.
    """

    dataset: str
    documents: int
    questions: int
    recall_at_5: ByKind
    ndcg_at_10: ByKind
    search_p50_ms: ByKind


class RecallBenchmark:
    """Runs one data set through a retriever of its own in ``folder``.

    ``progress`` is called with (step, done, total).
    """

    def __init__(
        self, settings: RetrieverSettings, folder: Path, kinds: Sequence[SearchKind], progress: Progress
    ) -> None:
        self._settings = settings
        self._folder = folder
        self._kinds = kinds
        self._progress = progress

    async def run(self, dataset: Dataset, sample: int, seed: int) -> RecallResult:
        """Ask ``sample`` questions that name a gold document, drawn with ``seed``; all if there are fewer."""
        asked = draw_with_gold(dataset, sample, seed)
        retriever = build_retriever(self._settings, self._folder)
        await retriever.start()
        try:
            documents = await ingest_corpus(retriever, dataset, self._progress)
            # The retriever keeps the folder until both have searched, so the store does not change in between.
            with closing(ExactSearch(self._settings, self._folder, dataset.corpus)) as exact:
                searches: dict[str, Search] = {kind.value: search_of(retriever, dataset, kind) for kind in self._kinds}
                searches[EXACT] = partial(exact.search, top_k=TOP_K)
                answers = await ask_in_turn(asked, searches, self._progress)
        finally:
            await retriever.close()
        gold = [question.gold_doc_ids for question in asked]
        scores = {name: mean_recall_and_gain(gold, answer.found) for name, answer in answers.items()}
        return RecallResult(
            dataset=dataset.name,
            documents=documents,
            questions=len(asked),
            recall_at_5=ByKind(**{name: recall for name, (recall, _) in scores.items()}),
            ndcg_at_10=ByKind(**{name: gain for name, (_, gain) in scores.items()}),
            search_p50_ms=ByKind(**{name: percentile(answer.times_ms, 50) for name, answer in answers.items()}),
        )
