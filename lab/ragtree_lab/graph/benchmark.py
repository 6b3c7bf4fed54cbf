"""Graphs: whether a search with the collection's graph finds the documents that answer questions, and what it costs.

Each set's documents are stored by a retriever without a graph, in a folder of their own. A retriever with one then
reads them, so the seconds are the graph's alone. Once the graph is complete, every question is searched in each way, in
turn. The baselines are dense and hybrid search without a graph.

With an `AttentionBenchmark`, it then measures attention over the paths of these graphs.

Limits: documents are found by their chunks. Where a set does not name its gold passages, they are told by the answer
(see `ragtree_lab.graph.sets`).
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal, NamedTuple

import msgspec

from examine.measuring import Progress
from examine.measuring.statistics import percentile
from protocol.errors import ConfigError
from protocol.graph import GraphMode
from protocol.retrieval import SearchKind
from ragtree_lab.graph.attention.benchmark import AttentionBenchmark
from ragtree_lab.graph.attention.quality import QualityRow
from ragtree_lab.graph.attention.results import AttentionRow, Slo
from ragtree_lab.graph.facts import Facts
from ragtree_lab.graph.found_facts import MOST_PATHS, found_facts
from ragtree_lab.graph.graph_store import GraphStore
from ragtree_lab.graph.sets import NO_GOLD, Gold, GraphSet, open_set, set_names
from ragtree_lab.measuring.recalls import mean_capped_recall
from ragtree_lab.measuring.searches import Search, ask_in_turn
from ragtree_lab.workloads.corpus_store import ingest_corpus, search_corpus
from retriever.build import build_retriever
from retriever.embedding.base import Embedder
from retriever.embedding.factory import build_embedder
from retriever.retriever import Retriever
from retriever.settings import GraphSettings, RetrieverSettings

TOP_DOCUMENTS = 5
_TOP_CHUNKS = 20
"""Chunks of a search. The first 5 documents are those of its best chunks."""

_SHOW_EVERY_S = 1.0


class Way(NamedTuple):
    """A way to search: a kind of search, and how the graph is used."""

    kind: SearchKind
    mode: GraphMode


WAYS: Mapping[str, Way] = {
    "dense": Way(SearchKind.DENSE, GraphMode.NAIVE),
    "hybrid": Way(SearchKind.HYBRID, GraphMode.NAIVE),
    "graph": Way(SearchKind.HYBRID, GraphMode.MIX),
    "local": Way(SearchKind.HYBRID, GraphMode.LOCAL),
    "global": Way(SearchKind.HYBRID, GraphMode.GLOBAL),
}


class ByWay(msgspec.Struct, frozen=True):
    """A figure by way to search: dense and hybrid without a graph, and modes mix (``graph``), local and global."""

    dense: float
    hybrid: float
    graph: float
    local: float
    global_: float = msgspec.field(name="global")


class GraphIndex(msgspec.Struct, frozen=True):
    """The graph of one set: its size, and the ``seconds`` in which it was read from documents that are stored.

    ``bytes`` are those of its tables in the store. The graph in memory is not among them.
    """

    documents: int
    chunks: int
    entities: int
    statements: int
    relations: int
    seconds: float
    documents_per_minute: float
    bytes: int


class GraphResult(msgspec.Struct, frozen=True):
    """Figures by set.

    ``recall_at_5`` is the share of a question's gold documents among the first 5 documents, at most 5 of them, as a
    mean over all questions. ``gold`` says how they are known: the set names them (``given``), or they are the
    question's contexts with one of its answers (``answer``). ``search_ms`` are medians and include embedding the
    question. ``left_out`` has a reason for each set that cannot be measured. The others are those of an
    `AttentionResult`, empty if attention was not measured.
    """

    recall_at_5: dict[str, ByWay]
    questions: dict[str, int]
    gold: dict[str, Gold]
    search_ms: dict[str, ByWay]
    index: dict[str, GraphIndex]
    left_out: dict[str, str]
    attention: list[AttentionRow] = []
    ttft_ratio: dict[str, float] = {}
    throughput: dict[str, float] = {}
    throughput_ratio: dict[str, float] = {}
    throughput_at_slo: dict[str, float] = {}
    throughput_at_slo_ratio: dict[str, float] = {}
    slo: Slo | None = None
    no_slo: str = ""
    quality: list[QualityRow] = []


class _Measured(NamedTuple):
    recall: ByWay
    search_ms: ByWay
    graph: GraphIndex
    facts: list[Facts]


class GraphBenchmark:
    """Measures question sets. ``settings`` configure all but the graph.

    Without ``attention``, it measures searches alone. ``progress`` is called with (step, done, total).
    """

    def __init__(self, settings: RetrieverSettings, attention: AttentionBenchmark | None, progress: Progress) -> None:
        self._settings = settings
        self._attention = attention
        self._progress = progress

    async def run(
        self, data: Path, chosen: Sequence[str], questions: int, context_tokens: Sequence[int] = ()
    ) -> GraphResult:
        """Measure the ``chosen`` sets below ``data``, or all, with up to ``questions`` questions each.

        Attention is measured over paths that take each number of ``context_tokens`` in full. Raises ConfigError for an
        unknown set and if none can be measured, and what the retriever and the engines raise.
        """
        names, left_out = set_names(data, chosen)
        embedder = build_embedder(self._settings.embedder)
        result = GraphResult({}, {}, {}, {}, {}, left_out)
        facts: dict[str, list[Facts]] = {}
        for name in names:
            graph_set = open_set(data, name)
            if graph_set is None:
                left_out[name] = NO_GOLD
                continue
            measured = await self._measure(graph_set, questions, embedder)
            result.recall_at_5[name] = measured.recall
            result.questions[name] = len(graph_set.evenly(questions))
            result.gold[name] = graph_set.gold
            result.search_ms[name] = measured.search_ms
            result.index[name] = measured.graph
            facts[name] = measured.facts
        if not result.index:
            reasons = ", ".join(f"{name}: {reason}" for name, reason in left_out.items())
            raise ConfigError(f"no set at {data} can be measured ({reasons or 'there is none'})", "set")
        if self._attention is None:
            return result
        over_paths = await self._attention.run(facts, context_tokens)
        return msgspec.structs.replace(result, **msgspec.structs.asdict(over_paths))

    async def _measure(self, graph_set: GraphSet, questions: int, embedder: Embedder) -> _Measured:
        show = partial(self._show, graph_set.name)
        asked = graph_set.evenly(questions)
        with TemporaryDirectory(prefix="ragtree-bench-") as name:
            folder = Path(name)
            await self._store(graph_set, folder, embedder, show)
            retriever = build_retriever(self._with_graph("rules"), folder, embedder)
            began = time.perf_counter()
            await retriever.start()
            try:
                with closing(GraphStore(folder)) as store:
                    await _read_graph(retriever, store, show)
                    index = _index(store, time.perf_counter() - began)
                searches: dict[str, Search] = {
                    name: partial(_search, retriever, graph_set, way) for name, way in WAYS.items()
                }
                answers = await ask_in_turn(asked, searches, show)
                measures = self._attention is not None
                facts = await found_facts(retriever, graph_set, asked, show) if measures else []
            finally:
                await retriever.close()
        gold = [question.gold_doc_ids for question in asked]
        return _Measured(
            _by_way({name: mean_capped_recall(gold, answer.found, TOP_DOCUMENTS) for name, answer in answers.items()}),
            _by_way({name: percentile(answer.times_ms, 50) for name, answer in answers.items()}),
            index,
            facts,
        )

    async def _store(self, graph_set: GraphSet, folder: Path, embedder: Embedder, show: Progress) -> None:
        retriever = build_retriever(self._with_graph("none"), folder, embedder)
        await retriever.start()
        try:
            await ingest_corpus(retriever, graph_set, show)
        finally:
            await retriever.close()

    def _with_graph(self, kind: Literal["none", "rules"]) -> RetrieverSettings:
        return self._settings.model_copy(update={"graph": GraphSettings(kind=kind, paths=MOST_PATHS)})

    def _show(self, name: str, step: str, done: int, total: int) -> None:
        self._progress(f"{step}, {name}", done, total)


async def _read_graph(retriever: Retriever, store: GraphStore, show: Progress) -> None:
    chunks = store.size().chunks
    reading = asyncio.ensure_future(retriever.wait_for_graph())
    while not reading.done():
        show("reading the graph", store.chunks_read(), chunks)
        await asyncio.wait([reading], timeout=_SHOW_EVERY_S)
    await reading
    show("reading the graph", chunks, chunks)


async def _search(retriever: Retriever, graph_set: GraphSet, way: Way, question: str) -> Sequence[str]:
    found = await search_corpus(retriever, graph_set, question, _TOP_CHUNKS, way.kind, mode=way.mode)
    return [chunk.document_id for chunk in found.docs]


def _index(store: GraphStore, seconds: float) -> GraphIndex:
    size = store.size()
    return GraphIndex(
        documents=size.documents,
        chunks=size.chunks,
        entities=size.entities,
        statements=size.statements,
        relations=size.relations,
        seconds=seconds,
        documents_per_minute=60 * size.documents / seconds,
        bytes=size.bytes,
    )


def _by_way(figures: Mapping[str, float]) -> ByWay:
    return msgspec.convert(figures, ByWay)
