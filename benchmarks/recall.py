"""Recall: compares the shipped retriever's index with exact search over the same embeddings.

The corpus is ingested once into a folder that is kept, so later runs embed nothing. Every question is searched twice:
with the configured index, and by comparison with every stored embedding, which is the baseline.

Limits: recall is by document and needs questions that name their gold documents.
"""

import random
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path

import msgspec

from benchmarks.measuring.exact_search import ExactSearch
from benchmarks.measuring.progress import Progress
from benchmarks.measuring.statistics import percentile
from benchmarks.workloads.corpus_store import ingest_corpus, search_corpus
from benchmarks.workloads.datasets import Dataset, Question
from protocol.errors import ConfigError
from retriever.build import build_retriever
from retriever.retriever import Retriever
from retriever.settings import RetrieverSettings

TOP_K = 5

Search = Callable[[str], Awaitable[set[str]]]
"""Maps a question to the documents of its found chunks."""


class RecallResult(msgspec.Struct, frozen=True):
    """Shares of questions with a gold document among the documents of the first k chunks.

    Search times are in milliseconds and include the question's embedding.
    """

    dataset: str
    documents: int
    questions: int
    recall_at_5: float
    exact_recall_at_5: float
    search_p50_ms: float
    exact_search_p50_ms: float


class RecallBenchmark:
    """Runs one data set through a retriever of its own in ``folder``.

    ``progress`` is called with (step, done, total).
    """

    def __init__(self, settings: RetrieverSettings, folder: Path, progress: Progress) -> None:
        self._settings = settings
        self._folder = folder
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
                searches = (_search_of(retriever, dataset), partial(exact.search, top_k=TOP_K))
                (recall, times), (exact_recall, exact_times) = await self._ask(asked, searches)
        finally:
            await retriever.close()
        return RecallResult(
            dataset=dataset.name,
            documents=documents,
            questions=len(asked),
            recall_at_5=recall,
            exact_recall_at_5=exact_recall,
            search_p50_ms=percentile(times, 50),
            exact_search_p50_ms=percentile(exact_times, 50),
        )

    async def _ask(self, questions: Sequence[Question], searches: Sequence[Search]) -> list[tuple[float, list[float]]]:
        """Return each search's share of answered questions, and its times in milliseconds.

        The searches take turns, so that the machine's noise affects all alike.
        """
        found = [0] * len(searches)
        times: list[list[float]] = [[] for _ in searches]
        for done, question in enumerate(questions, start=1):
            for number, search in enumerate(searches):
                began = time.perf_counter()
                documents = await search(question.question)
                times[number].append((time.perf_counter() - began) * 1000)
                found[number] += not documents.isdisjoint(question.gold_doc_ids)
            self._progress("searching", done, len(questions))
        return [(count / len(questions), taken) for count, taken in zip(found, times, strict=True)]


def _search_of(retriever: Retriever, dataset: Dataset) -> Search:
    async def search(question: str) -> set[str]:
        return {chunk.document_id for chunk in (await search_corpus(retriever, dataset, question, TOP_K)).docs}

    return search
