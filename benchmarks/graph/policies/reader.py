"""Reads sets of documents into graphs, and asks them questions for their paths."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.graph.facts import Facts
from benchmarks.graph.sets import GraphSet
from benchmarks.measuring.progress import Progress
from benchmarks.workloads.corpus_store import ingest_corpus, search_corpus
from benchmarks.workloads.datasets import Dataset
from protocol.errors import ConfigError
from protocol.graph import GraphMode
from retriever.build import build_retriever
from retriever.embedding.base import Embedder
from retriever.embedding.factory import build_embedder
from retriever.settings import GraphSettings, RetrieverSettings

_MOST_PATHS = 1000
"""Of a search. As many are used as fit the number of tokens of a prompt."""


class FactsReader:
    """Finds the paths of questions in graphs that it reads by rules. ``settings`` configure all but the graph.

    ``progress`` is called with (step, done, total).
    """

    def __init__(self, settings: RetrieverSettings, progress: Progress) -> None:
        graph = GraphSettings(kind="rules", paths=_MOST_PATHS)
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
        name = graph_set.name
        with TemporaryDirectory(prefix="ragtree-bench-") as folder:
            retriever = build_retriever(self._settings, Path(folder), embedder)
            await retriever.start()
            try:
                await ingest_corpus(retriever, graph_set, partial(self._show, name))
                self._show(name, "reading the graph", 0, 1)
                await retriever.wait_for_graph()
                self._show(name, "reading the graph", 1, 1)
                found: list[Facts] = []
                asked = graph_set.evenly(questions)
                for number, question in enumerate(asked):
                    self._show(name, "finding paths", number, len(asked))
                    last = await search_corpus(retriever, graph_set, question.question, 1, mode=GraphMode.LOCAL)
                    paths = last.graph.paths if last.graph is not None else ()
                    found.append(Facts(question.question, question.answers, paths))
                self._show(name, "finding paths", len(asked), len(asked))
                return found
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
