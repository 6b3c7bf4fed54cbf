"""Reads sets of documents into graphs, and asks them questions for their paths."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.graph.facts import Facts
from benchmarks.graph.found_facts import MOST_PATHS, found_facts
from benchmarks.graph.sets import GraphSet
from benchmarks.measuring.progress import Progress
from benchmarks.workloads.corpus_store import ingest_corpus
from benchmarks.workloads.datasets import Dataset
from protocol.errors import ConfigError
from retriever.build import build_retriever
from retriever.embedding.base import Embedder
from retriever.embedding.factory import build_embedder
from retriever.settings import GraphSettings, RetrieverSettings


class FactsReader:
    """Finds the paths of questions in graphs that it reads by rules. ``settings`` configure all but the graph.

    ``progress`` is called with (step, done, total).
    """

    def __init__(self, settings: RetrieverSettings, progress: Progress) -> None:
        graph = GraphSettings(kind="rules", paths=MOST_PATHS)
        self._settings = settings.model_copy(update={"graph": graph})
        self._progress = progress

    async def read(self, data: Path, names: Sequence[str], questions: int) -> dict[str, list[Facts]]:
        """Return the facts of up to so many questions of each set below ``data``, at equal distances in it.

        Passages need not be known, so all questions in English may be asked. Raises ConfigError if a set has no
        documents or no questions, and what the retriever raises.
        """
        sets = [_all_of(data, name) for name in names]
        embedder = build_embedder(self._settings.embedder)
        return {each.name: await self._read(each, questions, embedder) for each in sets}

    async def _read(self, graph_set: GraphSet, questions: int, embedder: Embedder) -> list[Facts]:
        show = partial(self._show, graph_set.name)
        with TemporaryDirectory(prefix="ragtree-bench-") as folder:
            retriever = build_retriever(self._settings, Path(folder), embedder)
            await retriever.start()
            try:
                await ingest_corpus(retriever, graph_set, show)
                show("reading the graph", 0, 1)
                await retriever.wait_for_graph()
                show("reading the graph", 1, 1)
                return await found_facts(retriever, graph_set, graph_set.evenly(questions), show)
            finally:
                await retriever.close()

    def _show(self, name: str, step: str, done: int, total: int) -> None:
        self._progress(f"{step}, {name}", done, total)


def _all_of(data: Path, name: str) -> GraphSet:
    dataset = Dataset(data, name)
    documents = [document for document in dataset.documents() if document.lang in ("", "en")]
    questions = [question for question in dataset.questions() if question.lang in ("", "en")]
    if not documents or not questions:
        raise ConfigError(f"the set {name} has no documents or no questions in English", "set")
    return GraphSet(name, "given", documents, questions)
