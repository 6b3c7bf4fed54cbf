"""What the index costs in recall: the shipped retriever against exact search with the same embeddings.

The corpus is ingested once into a folder that is kept, so a later run embeds nothing anew. Every question is then asked
twice through the same code, with the configured index and with one that compares every vector.
"""

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from benchmarks.datasets import Dataset, Question
from benchmarks.statistics import percentile
from protocol.errors import ConfigError, InternalError
from protocol.retrieval import SearchRequest
from retriever.build import build_retriever
from retriever.settings import RetrieverSettings

TENANT = "bench"
BATCH = 2000
"""Documents of one ingestion job."""
EXACT_BELOW = 2**62
"""A threshold of vectors that no collection reaches."""


class RecallResult(msgspec.Struct, frozen=True):
    """Shares of questions for which a gold document is among the documents of the first k chunks.

    Search times include the question's embedding, in milliseconds.
    """

    dataset: str
    documents: int
    questions: int
    recall_at_5: float
    exact_recall_at_5: float
    search_p50_ms: float
    exact_search_p50_ms: float


class RecallBenchmark:
    """Runs one data set through a retriever of its own in ``folder``. ``progress`` hears (done, total) of each step."""

    def __init__(self, settings: RetrieverSettings, folder: Path, progress: Callable[[str, int, int], None]) -> None:
        self._settings = settings
        self._folder = folder
        self._progress = progress

    async def run(self, dataset: Dataset, sample: int, seed: int) -> RecallResult:
        """Ask ``sample`` questions that name a gold document, drawn with ``seed``; all of them if there are fewer."""
        asked = [question for question in dataset.questions() if question.gold_doc_ids]
        if len(asked) > sample:
            asked = random.Random(seed).sample(asked, sample)  # noqa: S311 - a repeatable draw
        if not asked:
            raise ConfigError(f"no question of {dataset.name!r} names the documents that hold its answer")
        documents = await self._ingest(dataset)
        recall, times = await self._ask("searching", self._settings, dataset.name, asked)
        exact = self._settings.model_copy(
            update={"index": self._settings.index.model_copy(update={"ivf_threshold": EXACT_BELOW})}
        )
        exact_recall, exact_times = await self._ask("searching exactly", exact, dataset.name, asked)
        return RecallResult(
            dataset=dataset.name,
            documents=documents,
            questions=len(asked),
            recall_at_5=recall,
            exact_recall_at_5=exact_recall,
            search_p50_ms=percentile(times, 50),
            exact_search_p50_ms=percentile(exact_times, 50),
        )

    async def _ingest(self, dataset: Dataset) -> int:
        lines = [
            msgspec.json.encode({"id": document.doc_id, "title": document.title, "text": document.text})
            for document in dataset.documents()
        ]
        retriever = build_retriever(self._settings, self._folder)
        await retriever.start()
        try:
            done = 0
            for first in range(0, len(lines), BATCH):
                batch = lines[first : first + BATCH]
                job = await retriever.put_batch(TENANT, dataset.name, b"\n".join(batch))
                while not job.ended:
                    await asyncio.sleep(0.1)
                    job = await retriever.get_job(TENANT, job.job_id)
                    self._progress("ingesting", done + job.stored + job.unchanged, len(lines))
                if job.failed_documents:
                    raise InternalError(f"the corpus did not go in whole: {job.last_error}")
                done += len(batch)
        finally:
            await retriever.close()
        return len(lines)

    async def _ask(
        self, step: str, settings: RetrieverSettings, collection: str, questions: Sequence[Question]
    ) -> tuple[float, list[float]]:
        """The share of questions answered and the milliseconds of each search."""
        retriever = build_retriever(settings, self._folder)
        await retriever.start()
        try:
            found = 0
            times = []
            for done, question in enumerate(questions, start=1):
                began = time.perf_counter()
                async for candidates in retriever.search(SearchRequest(TENANT, collection, question.question, top_k=5)):
                    last = candidates
                times.append((time.perf_counter() - began) * 1000)
                found += any(chunk.document_id in question.gold_doc_ids for chunk in last.docs)
                self._progress(step, done, len(questions))
        finally:
            await retriever.close()
        return found / len(questions), times
