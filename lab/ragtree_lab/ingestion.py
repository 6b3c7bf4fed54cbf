"""Ingestion: documents per second, and how well they are found, by type of the embedder's weights.

Each type ingests the same documents into a retriever of its own in each round, from the upload to the end of its job.
The types take turns, in reverse order in every other round. The last round's retrievers then answer the questions.

Limits: one process without an engine beside it; documents are plain text; the model is already loaded.
"""

import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import msgspec
from pydantic import ValidationError

from examine.measuring import Progress
from protocol.errors import ConfigError
from protocol.retrieval import SearchKind
from ragtree_lab.measuring.recalls import mean_recall_and_gain
from ragtree_lab.measuring.searches import SearchTimes, ask_in_turn, search_of
from ragtree_lab.workloads.corpus_store import ingest_corpus
from ragtree_lab.workloads.datasets import Dataset, draw_with_gold
from retriever.build import build_retriever
from retriever.settings import RetrieverSettings, SentenceTransformerSettings


class IngestionRow(msgspec.Struct, frozen=True):
    """Figures of one type of weights.

    ``documents_per_s`` is the median of all rounds. ``recall_at_5`` and ``ndcg_at_10`` are means over all questions,
    searched by vectors alone. ``search_p50_ms`` includes embedding the question.
    """

    dtype: str
    documents_per_s: float
    recall_at_5: float
    ndcg_at_10: float
    search_p50_ms: float


class IngestionResult(msgspec.Struct, frozen=True):
    """All rows, in the order of the types that were asked for."""

    dataset: str
    documents: int
    questions: int
    rounds: int
    rows: list[IngestionRow]


class IngestionBenchmark:
    """Ingests one data set with each of ``dtypes``. ``settings`` configure all else. ``progress`` shows each step."""

    def __init__(self, settings: RetrieverSettings, dtypes: Sequence[str], progress: Progress) -> None:
        if not isinstance(settings.embedder, SentenceTransformerSettings):
            raise ConfigError("the embedder has no type of weights: it is not a sentence-transformers model")
        self._settings = {dtype: _with_dtype(settings, settings.embedder, dtype) for dtype in dtypes}
        self._progress = progress

    async def run(self, dataset: Dataset, sample: int, rounds: int, seed: int) -> IngestionResult:
        """Ingest the set ``rounds`` times and ask ``sample`` questions that name a gold document.

        Raises what the retriever raises, and ConfigError if no question names a gold document.
        """
        asked = draw_with_gold(dataset, sample, seed)
        speeds: dict[str, list[float]] = {dtype: [] for dtype in self._settings}
        answers: dict[str, SearchTimes] = {}
        documents = 0
        for number in range(rounds):
            for dtype in list(self._settings)[:: -1 if number % 2 else 1]:
                with TemporaryDirectory(prefix="ragtree-bench-") as folder:
                    retriever = build_retriever(self._settings[dtype], Path(folder))
                    await retriever.start()
                    try:
                        show = partial(self._show, f"{dtype}, round {number + 1}")
                        began = time.perf_counter()
                        documents = await ingest_corpus(retriever, dataset, show)
                        speeds[dtype].append(documents / (time.perf_counter() - began))
                        if number == rounds - 1:
                            dense = {dtype: search_of(retriever, dataset, SearchKind.DENSE)}
                            answers |= await ask_in_turn(asked, dense, show)
                    finally:
                        await retriever.close()
        gold = [question.gold_doc_ids for question in asked]
        rows = [
            IngestionRow(
                dtype,
                median(speeds[dtype]),
                *mean_recall_and_gain(gold, answers[dtype].found),
                median(answers[dtype].times_ms),
            )
            for dtype in self._settings
        ]
        return IngestionResult(dataset.name, documents, len(asked), rounds, rows)

    def _show(self, turn: str, step: str, done: int, total: int) -> None:
        self._progress(f"{step}, {turn}", done, total)


def _with_dtype(settings: RetrieverSettings, embedder: SentenceTransformerSettings, dtype: str) -> RetrieverSettings:
    try:
        changed = SentenceTransformerSettings.model_validate({**embedder.model_dump(), "dtype": dtype})
    except ValidationError as error:
        raise ConfigError(f"{dtype!r} is no type of an embedder's weights: {error.errors()[0]['msg']}") from error
    return settings.model_copy(update={"embedder": changed})
