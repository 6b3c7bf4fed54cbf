"""Reads sets of documents into graphs, and asks them questions for their paths."""

from collections.abc import Sequence
from functools import cached_property, partial
from pathlib import Path
from tempfile import TemporaryDirectory

from examine.measuring import Progress
from ragtree_lab.graph.facts import Facts
from ragtree_lab.graph.found_facts import found_facts
from ragtree_lab.graph.sets import GraphSet
from ragtree_lab.workloads.corpus_store import ingest_corpus
from ragtree_lab.workloads.datasets import Question
from retriever.build import build_retriever
from retriever.embedding.base import Embedder
from retriever.embedding.factory import build_embedder
from retriever.settings import RetrieverSettings


class FactsReader:
    """Finds the paths of questions in graphs that it reads by rules, up to ``paths`` of each.

    ``settings`` configure the rest. ``progress`` is called with (step, done, total).
    """

    def __init__(self, settings: RetrieverSettings, paths: int, progress: Progress) -> None:
        graph = settings.graph.model_copy(update={"kind": "rules", "paths": paths})
        self._settings = settings.model_copy(update={"graph": graph})
        self._progress = progress

    async def read(self, graph_set: GraphSet, asked: Sequence[Question]) -> list[Facts]:
        """Return the facts of questions of a set, in their order. Raises what the retriever raises."""
        show = partial(self._show, graph_set.name)
        with TemporaryDirectory(prefix="ragtree-bench-") as folder:
            retriever = build_retriever(self._settings, Path(folder), self._embedder)
            await retriever.start()
            try:
                await ingest_corpus(retriever, graph_set, show)
                show("reading the graph", 0, 1)
                await retriever.wait_for_graph()
                show("reading the graph", 1, 1)
                return await found_facts(retriever, graph_set, asked, show)
            finally:
                await retriever.close()

    @cached_property
    def _embedder(self) -> Embedder:
        return build_embedder(self._settings.embedder)

    def _show(self, name: str, step: str, done: int, total: int) -> None:
        self._progress(f"{step}, {name}", done, total)
