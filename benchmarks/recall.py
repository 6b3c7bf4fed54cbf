"""Recall: how well the kinds of search find the documents that answer questions.

The corpus is ingested once into a folder that is kept, so later runs embed nothing. Every question is searched by each
kind with the shipped retriever, and by comparison with every stored embedding (``exact``), which is the baseline of the
dense index.

Limits: documents are found by their chunks, and questions must name their gold documents.
"""

import random
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path

import msgspec

from benchmarks.measuring.exact_search import ExactSearch
from benchmarks.measuring.progress import Progress
from benchmarks.measuring.rankings import mean_recall_and_gain
from benchmarks.measuring.statistics import percentile
from benchmarks.workloads.corpus_store import ingest_corpus, search_corpus
from benchmarks.workloads.datasets import Dataset, Question
from protocol.errors import ConfigError
from protocol.retrieval import SearchKind
from retriever.build import build_retriever
from retriever.retriever import Retriever
from retriever.settings import RetrieverSettings

EXACT = "exact"
TOP_K = 10

Search = Callable[[str], Awaitable[Sequence[str]]]
"""Maps a question to the documents of its first ``TOP_K`` chunks, best first; a document may occur several times."""


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
        asked = [question for question in dataset.questions() if question.gold_doc_ids]
        if len(asked) > sample:
            asked = random.Random(seed).sample(asked, sample)  # noqa: S311 - a repeatable draw
        if not asked:
            raise ConfigError(f"no question of {dataset.name!r} names the documents that hold its answer")
        retriever = build_retriever(self._settings, self._folder)
        await retriever.start()
        try:
            documents = await ingest_corpus(retriever, dataset, self._progress)
            # The retriever keeps the folder until both have searched, so the store does not change in between.
            with closing(ExactSearch(self._settings, self._folder, dataset.corpus)) as exact:
                searches: dict[str, Search] = {kind.value: _search_of(retriever, dataset, kind) for kind in self._kinds}
                searches[EXACT] = partial(exact.search, top_k=TOP_K)
                found, times = await self._ask(asked, searches)
        finally:
            await retriever.close()
        gold = [question.gold_doc_ids for question in asked]
        scores = {name: mean_recall_and_gain(gold, documents_of) for name, documents_of in found.items()}
        return RecallResult(
            dataset=dataset.name,
            documents=documents,
            questions=len(asked),
            recall_at_5=ByKind(**{name: recall for name, (recall, _) in scores.items()}),
            ndcg_at_10=ByKind(**{name: gain for name, (_, gain) in scores.items()}),
            search_p50_ms=ByKind(**{name: percentile(taken, 50) for name, taken in times.items()}),
        )

    async def _ask(
        self, questions: Sequence[Question], searches: Mapping[str, Search]
    ) -> tuple[dict[str, list[Sequence[str]]], dict[str, list[float]]]:
        """Return what each search finds for each question, and its times in milliseconds.

        The searches take turns, so that the machine's noise affects all alike.
        """
        found: dict[str, list[Sequence[str]]] = {name: [] for name in searches}
        times: dict[str, list[float]] = {name: [] for name in searches}
        for done, question in enumerate(questions, start=1):
            for name, search in searches.items():
                began = time.perf_counter()
                documents = await search(question.question)
                times[name].append((time.perf_counter() - began) * 1000)
                found[name].append(documents)
            self._progress("searching", done, len(questions))
        return found, times


def _search_of(retriever: Retriever, dataset: Dataset, kind: SearchKind) -> Search:
    async def search(question: str) -> Sequence[str]:
        found = await search_corpus(retriever, dataset, question, TOP_K, kind)
        return [chunk.document_id for chunk in found.docs]

    return search
