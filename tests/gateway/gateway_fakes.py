"""Fakes of the other parts. Tests can script them, count their calls, and hold them in any phase."""

import asyncio
import math
import struct
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Sequence
from itertools import count, islice

import msgspec
from fake_adapters import FakeAdapters
from fake_layout import FakeLayout

from protocol.cache import CachePath, DocumentDeletion, TierStats, TreeNode, TreeView
from protocol.documents import (
    CollectionInfo,
    DocumentInfo,
    DocumentPage,
    DocumentUpload,
    IngestJob,
    JobError,
    Orphan,
    RetrieverStats,
    StoredDocument,
)
from protocol.errors import (
    EmptyDocument,
    InvalidEncoding,
    InvalidRequest,
    NoDocuments,
    NoGraph,
    PinRefused,
    UnknownCollection,
    UnknownDocument,
    UnknownEntity,
    UnknownFilterKey,
    UnknownJob,
    UnknownModel,
    UnknownNode,
    UnsupportedMediaType,
)
from protocol.filters import Comparison
from protocol.generation import EngineInfo, GenerationStep, PrefillResult, Sampling, TokenLogprob
from protocol.graph import GraphMode, GraphRequest, GraphState, GraphView, Subgraph
from protocol.kv import KvMemory, KvRead, LostCopy, Orders, ResidencyReport
from protocol.plans import (
    AdmissionRequest,
    CompletionReport,
    ControllerStats,
    Fallback,
    InstanceLoad,
    NotWarmed,
    PlannedNode,
    PrefillPlan,
    Recompute,
    Reuse,
    SpeculationDecision,
)
from protocol.retrieval import (
    CandidateSet,
    Chunk,
    DocumentChunks,
    EmbeddingRequest,
    Embeddings,
    Lines,
    Reranking,
    SearchKind,
    SearchRequest,
    StoreRevision,
)
from protocol.tiers import Tier
from retriever.loaders.registry import LOADERS

ANSWER = ("Paris ", "is ", "the ", "capital ", "of ", "France.")
MODEL = "fake-model"
EMBEDDER = "fake-embedder"


async def eventually(condition: Callable[[], bool], timeout_s: float = 10.0) -> None:
    """Wait until the condition holds. On timeout, fail the test."""
    give_up = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < give_up, "the condition never came true"
        await asyncio.sleep(0.002)


class Phases:
    """Phases of a query. A test can hold queries in a phase, make them fail there, and wait for their arrival."""

    def __init__(self) -> None:
        self.held: set[str] = set()
        self.waiting = Counter[str]()
        self.failing: dict[str, Exception] = {}
        self.reached: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)
        self.released: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)

    async def enter(self, name: str) -> None:
        self.reached[name].set()
        await asyncio.sleep(0)
        if name in self.held:
            self.waiting[name] += 1
            try:
                await self.released[name].wait()
            finally:
                self.waiting[name] -= 1
        if name in self.failing:
            raise self.failing[name]


def chunk(rank: int) -> Chunk:
    text = f"document number {rank}"
    lines = Lines(rank + 1, rank + 2)
    return Chunk(f"d{rank}#0", f"d{rank}", f"d{rank}.txt", 0, text, f"hash{rank}", {"lang": "en"}, lines=lines)


class FakeRetriever:
    """Finds ``top_k`` of five documents' first chunks in two stages. ``missing_shards`` are reported as missing.

    With ``reranking``, a third stage reports it and, if that is done, has the documents in reverse order.
    The final documents of graph modes come from the ``graph``; without one, such searches are refused. ``view`` is what
    can be seen of it, and ``viewed`` who has asked.
    Each document has ``chunks_of`` chunks. Jobs have the status ``job_status``.
    """

    def __init__(self, phases: Phases) -> None:
        self.phases = phases
        self.collections = {("default", "default"): 5, ("acme", "default"): 5, ("default", "empty"): 0}
        self.kinds: dict[tuple[str, str], SearchKind | None] = {}
        self.requests: list[SearchRequest] = []
        self.embedded: list[EmbeddingRequest] = []
        self.uploads: list[tuple[str, str, DocumentUpload, str | None]] = []
        self.batches: list[bytes] = []
        self.deleted: dict[tuple[str, str, str], Orphan] = {}
        self.orphaned: list[Orphan] = []
        self.given_up: dict[int, str] = {}
        self.revision = StoreRevision("fake", 0)
        self.missing_shards: tuple[str, ...] = ()
        self.reranking: Reranking | None = None
        self.graph: Subgraph | None = None
        self.view: GraphView | None = None
        self.viewed: list[GraphRequest] = []
        self.unread: int | None = 6
        self.unreadable: int | None = 2
        self.chunks_of = 1
        self.job_status = "failed"
        self.open = 0

    def _size(self, tenant: str, collection: str) -> int:
        if (tenant, collection) not in self.collections:
            raise UnknownCollection(f"There is no collection {collection!r}.", "collection")
        return self.collections[tenant, collection]

    async def search(self, request: SearchRequest) -> AsyncIterator[CandidateSet]:
        self.requests.append(request)
        self.open += 1
        try:
            await self.phases.enter("search")
            size = self._size(request.tenant, request.collection)
            if size == 0:
                raise NoDocuments("The collection is empty.", "collection")
            if isinstance(request.filters, Comparison) and request.filters.key != "lang":
                raise UnknownFilterKey(f"No document has {request.filters.key!r}.", "filters")
            if request.mode is not GraphMode.NAIVE and self.graph is None:
                raise NoGraph("The collection has no graph.", "mode")
            docs = tuple(chunk(rank) for rank in range(min(size, request.top_k)))
            scores = tuple(1.0 - rank / 10 for rank in range(len(docs)))
            of = 2 if self.reranking is None else 3
            seen = (self.revision,)
            yield CandidateSet(1, of, docs[:1], scores[:1], final=False, elapsed_ms=1.0, revisions=seen)
            await self.phases.enter("second_stage")
            last = CandidateSet(2, of, docs, scores, of == 2, elapsed_ms=2.5, missing_shards=self.missing_shards)
            last = msgspec.structs.replace(last, revisions=(self.revision,))
            if request.mode is not GraphMode.NAIVE:
                nowhere = (None,) * len(scores)
                last = msgspec.structs.replace(
                    last, mode=request.mode, graph=self.graph, dense_scores=scores, sparse_scores=nowhere
                )
            yield last
            if self.reranking is not None:
                await self.phases.enter("rerank")
                ordered = docs[::-1] if self.reranking.status == "done" else docs
                yield msgspec.structs.replace(
                    last,
                    stage=3,
                    docs=ordered,
                    final=True,
                    elapsed_ms=2.5 + self.reranking.elapsed_ms,
                    dense_scores=scores,
                    sparse_scores=(None,) * len(scores),
                    reranking=self.reranking,
                )
        finally:
            self.open -= 1

    async def embed(self, request: EmbeddingRequest) -> Embeddings:
        await self.phases.enter("embed")
        if request.model != EMBEDDER:
            raise UnknownModel(f"Use {EMBEDDER!r}.", "model")
        self.embedded.append(request)
        vectors = tuple(struct.pack("<2f", 0.6, -0.8) for _ in request.texts)
        return Embeddings(vectors, sum(len(text.split()) for text in request.texts))

    def _job(self, collection: str, status: str = "queued", errors: tuple[JobError, ...] = ()) -> IngestJob:
        return IngestJob("job-1", collection, status, 1, 0, 0, len(errors), 1.0, 2.0, errors)

    async def put_document(
        self, tenant: str, collection: str, upload: DocumentUpload, idempotency_key: str | None = None
    ) -> IngestJob:
        await self.phases.enter("put")
        if upload.media_type not in LOADERS:
            raise UnsupportedMediaType(f"Nothing reads {upload.media_type!r}.")
        if not upload.content.strip():
            raise EmptyDocument("The document has no text.")
        if upload.media_type.startswith("text/"):
            try:
                upload.content.decode()
            except UnicodeDecodeError:
                raise InvalidEncoding("The document is not UTF-8.") from None
        self.uploads.append((tenant, collection, upload, idempotency_key))
        return self._job(collection)

    async def put_batch(
        self, tenant: str, collection: str, jsonl: bytes, idempotency_key: str | None = None
    ) -> IngestJob:
        self.batches.append(jsonl)
        return self._job(collection)

    async def delete_document(self, tenant: str, collection: str, document_id: str) -> None:
        (only,) = (await self.chunks(tenant, collection, document_id)).chunks
        self.revision = StoreRevision("fake", self.revision.number + 1)
        orphan = Orphan(self.revision.number, tenant, only.content_hash, self.revision)
        self.deleted[tenant, collection, document_id] = orphan
        self.orphaned.append(orphan)

    async def chunks(self, tenant: str, collection: str, document_id: str) -> DocumentChunks:
        await self.get_document(tenant, collection, document_id)
        first = chunk(int(document_id.removeprefix("d")))
        others = (msgspec.structs.replace(first, content_hash=f"{first.content_hash}-{number}") for number in count(1))
        return DocumentChunks((first, *islice(others, self.chunks_of - 1)), self.revision)

    async def orphans_of(self, tenant: str, collection: str, document_id: str) -> Sequence[Orphan]:
        orphan = self.deleted.get((tenant, collection, document_id))
        return [one for one in self.orphaned if orphan is not None and one.number == orphan.number]

    async def orphans(self, older_than_s: float, limit: int) -> Sequence[Orphan]:
        await self.phases.enter("orphans")
        return [orphan for orphan in self.orphaned if orphan.number not in self.given_up][:limit]

    async def attempt_orphans(self, orphans: Sequence[Orphan]) -> None:
        tried = {orphan.number for orphan in orphans}
        self.orphaned = [
            msgspec.structs.replace(orphan, attempts=orphan.attempts + (orphan.number in tried))
            for orphan in self.orphaned
        ]

    async def give_up_orphans(self, orphans: Sequence[Orphan], reason: str) -> None:
        self.given_up.update((orphan.number, reason) for orphan in orphans)

    async def forget_orphans(self, orphans: Sequence[Orphan]) -> None:
        forgotten = {orphan.number for orphan in orphans}
        self.orphaned = [orphan for orphan in self.orphaned if orphan.number not in forgotten]

    def _info(self, collection: str, rank: int) -> DocumentInfo:
        return DocumentInfo(f"d{rank}", collection, f"d{rank}.txt", None, "h", 10, 1, {}, 1.0, 1.0)

    async def get_document(self, tenant: str, collection: str, document_id: str) -> StoredDocument:
        size = self._size(tenant, collection)
        for rank in range(size):
            if document_id == f"d{rank}" and (tenant, collection, document_id) not in self.deleted:
                return StoredDocument(self._info(collection, rank), chunk(rank).text)
        raise UnknownDocument(f"There is no document {document_id!r}.", "document_id")

    async def list_documents(self, tenant: str, collection: str, limit: int, after: str | None = None) -> DocumentPage:
        size = self._size(tenant, collection)
        if not (after or "0").isascii() or not (after or "0").isdigit():
            raise InvalidRequest("This cursor was not given out here.", "after")
        start = int(after or 0)
        page = tuple(self._info(collection, rank) for rank in range(start, min(size, start + limit)))
        return DocumentPage(page, str(start + limit) if start + limit < size else None)

    async def put_collection(self, tenant: str, collection: str, search: SearchKind | None) -> None:
        self.collections.setdefault((tenant, collection), 0)
        self.kinds[tenant, collection] = search

    async def list_collections(self, tenant: str) -> Sequence[CollectionInfo]:
        graph = GraphState.READY if self.view else GraphState.NONE
        return [
            CollectionInfo(name, n, n, self.kinds.get((tenant, name)), graph)
            for (owner, name), n in self.collections.items()
            if owner == tenant
        ]

    async def view_graph(self, request: GraphRequest) -> GraphView:
        await self.phases.enter("view_graph")
        self._size(request.tenant, request.collection)
        self.viewed.append(request)
        if self.view is None:
            raise NoGraph("The collection has no graph.", "collection")
        if "Nobody" in request.entities:
            raise UnknownEntity("No document names 'Nobody'.", "label")
        return self.view

    async def get_job(self, tenant: str, job_id: str) -> IngestJob:
        await self.phases.enter("get_job")
        if job_id != "job-1":
            raise UnknownJob(f"There is no job {job_id!r}.", "job_id")
        return self._job("default", self.job_status, (JobError("broken_document", "It does not parse.", "d9"),))

    async def stats(self) -> RetrieverStats:
        await self.phases.enter("retriever_stats")
        return RetrieverStats({"stored": 5, "unchanged": 2, "failed": 1}, 3, 1000, 400, self.unread, self.unreadable)

    async def ready(self) -> None:
        await self.phases.enter("retriever_ready")


def never(_documents: tuple[str, ...], _running: tuple[str, ...] | None, _final: bool) -> SpeculationDecision:
    return SpeculationDecision.WAIT


def whenever_possible(documents: tuple[str, ...], running: tuple[str, ...] | None, final: bool) -> SpeculationDecision:
    """Decide as an idle controller does."""
    if documents == running:
        return SpeculationDecision.KEEP
    if not final:
        return SpeculationDecision.START
    return SpeculationDecision.DROP if running else SpeculationDecision.WAIT


class FakeController(FakeAdapters):
    """Admits at once, and records all calls.

    ``decide`` answers ``on_candidates``, given the running guess. ``speculate`` grants plans while there is ``room``.

    ``nodes`` are the paths of its tree, ``sources`` the tiers that its plans load from. ``warm`` grants no plan while
    the controller is ``busy``, nor for the prompts in ``present``. Plans have ``recompute`` and ``fallback``. With
    ``trees``, facts are in trees, except for exact answers.
    """

    def __init__(self, phases: Phases) -> None:
        super().__init__()
        self.phases = phases
        self.candidates: list[tuple[str, ...]] = []
        self.decide: Callable[[tuple[str, ...], tuple[str, ...] | None, bool], SpeculationDecision] = never
        self.room = True
        self.speculated: list[AdmissionRequest] = []
        self._speculating: dict[str, tuple[str, ...]] = {}
        self.admitted: list[AdmissionRequest] = []
        self.reports: list[CompletionReport] = []
        self.told: list[tuple[str, object]] = []
        self.warmed: list[AdmissionRequest] = []
        self.present: set[tuple[str, ...]] = set()
        self._warming: dict[str, tuple[str, ...]] = {}
        self.busy = False
        self.sources: tuple[Tier | None, ...] = ()
        self.recompute: Recompute | None = None
        self.fallback: Fallback | None = None
        self.trees = False
        self.nodes: set[CachePath] = set()
        self.pins = Counter[CachePath]()
        self.most_pins = 100
        self.deletions: list[DocumentDeletion] = []
        self.tiers: tuple[TierStats, ...] = (TierStats(Tier.GPU, "engine-0", 1000, 250, 50, 3, 7, "gpu@engine-0"),)
        self.waiting = 0

    async def on_candidates(self, query_id: str, documents: Sequence[str], final: bool) -> SpeculationDecision:
        await self.phases.enter("confirm" if final else "on_candidates")
        self.candidates.append(tuple(documents))
        running = self._speculating.get(query_id)
        decision = self.decide(tuple(documents), running, final)
        if decision is not SpeculationDecision.KEEP or final:
            self._speculating.pop(query_id, None)
        return decision

    async def speculate(self, query_id: str, documents: Sequence[str], request: AdmissionRequest) -> PrefillPlan | None:
        await self.phases.enter("speculate")
        self.speculated.append(request)
        if not self.room:
            return None
        self._speculating[query_id] = tuple(documents)
        return msgspec.structs.replace(self._plan(request), speculative=True)

    async def admit(self, request: AdmissionRequest) -> PrefillPlan:
        self.waiting += 1
        try:
            await self.phases.enter("queue")
        finally:
            self.waiting -= 1
        assert not any(report.query_id == request.query_id for report in self.reports), "a plan after its release"
        self.admitted.append(request)
        return self._plan(request)

    def _plan(self, request: AdmissionRequest) -> PrefillPlan:
        nodes = tuple(PlannedNode("00", 1, source, None) for source in self.sources)
        prompt = request.prompt.in_trees if self.trees and request.reuse is not Reuse.EXACT else request.prompt
        return PrefillPlan(
            request.query_id,
            "engine-0",
            request.namespace,
            msgspec.structs.replace(prompt, facts=None),
            queued_ms=4.0,
            nodes=nodes,
            overtaken=2,
            recompute=self.recompute,
            fallback=self.fallback,
            trees=prompt.trees,
        )

    async def prefilled(self, query_id: str, lost: Sequence[LostCopy] = (), reads: Sequence[KvRead] = ()) -> None:
        await self.phases.enter("prefilled")
        if query_id in self._warming:
            self.present.add(self._warming[query_id])
        self.told.append((query_id, lost))

    async def complete(self, report: CompletionReport) -> None:
        await self.phases.enter("complete")
        self.reports.append(report)
        self.told.append((report.query_id, report.outcome))

    async def persist(self) -> None:
        await self.phases.enter("persist")

    async def warm(self, request: AdmissionRequest, evicting: bool = True) -> PrefillPlan | NotWarmed:
        await self.phases.enter("warm")
        documents = tuple(document.key for document in request.prompt.documents)
        if documents in self.present:
            return NotWarmed.CACHED
        if self.busy:
            return NotWarmed.BUSY
        free = sum(tier.capacity_tokens - tier.used_tokens for tier in self.tiers)
        if not evicting and free < sum(len(segment.token_ids) for segment in request.prompt.prefix):
            return NotWarmed.NO_ROOM
        self._warming[request.query_id] = documents
        self.warmed.append(request)
        return self._plan(request)

    async def pin(self, path: CachePath, pinned: bool = True) -> None:
        if path not in self.nodes or (not pinned and not self.pins[path]):
            raise UnknownNode("There is no such node.")
        if pinned and self.pins.total() >= self.most_pins:
            raise PinRefused("Too much is pinned.")
        self.pins[path] += 1 if pinned else -1

    async def delete_document(self, deletion: DocumentDeletion) -> int:
        await self.phases.enter("drop")
        self.deletions.append(deletion)
        return len(deletion.contents)

    async def clear(self) -> int:
        return len(self.nodes)

    async def tree(self, depth: int, limit: int) -> TreeView:
        leaf = TreeNode("01", "hash0", 3, ("gpu@engine-0", "host"), 2.0, 1, False, True, (), 1)
        top = TreeNode("00", "hash-system", 2, ("gpu@engine-0",), 5.0, 0, True, True, (leaf,), 0)
        return TreeView({"n" * 32: (top,) if depth and limit else ()}, 2, self.tiers)

    async def stats(self) -> ControllerStats:
        await self.phases.enter("stats")
        admitted = len(self.admitted) + len(self.warmed)
        loads = tuple(InstanceLoad(name, 0, 0, retired=name == "c") for name in "abc")
        stats = ControllerStats("LRU", int(self.busy), self.waiting, admitted, 0, 0, 0, 0, 0, 0, 0)
        planned = {"planned_cached_tokens": 40, "planned_tokens": 100}
        return msgspec.structs.replace(stats, **planned, tiers=self.tiers, instances=loads)

    async def ready(self) -> None:
        await self.phases.enter("controller_ready")


class FakeGenerator:
    """Answers with ``words``, one token per word, or with those of the sampling's seed ``by_seed``.

    ``cached`` prompt tokens are cached, in the tiers of ``loaded``. Others are ``composed`` and ``recomputed``, with a
    ``deviation``. It refuses a sampling with ``refusal``. A word's token is its number; the token in its place that is
    half as likely is the word in capitals, 100 higher.
    """

    def __init__(self, phases: Phases, words: Sequence[str] = ANSWER) -> None:
        self.phases = phases
        self.words = words
        self.by_seed: dict[int | None, Sequence[str]] = {}
        self.cached = 3
        self.loaded: dict[Tier, int] | None = None
        self.composed = self.recomputed = 0
        self.deviation = 0.0
        self.lost: tuple[LostCopy, ...] = ()
        self.unwritten: tuple[LostCopy, ...] | None = None
        self.kv: KvMemory | None = None
        self.counted: dict[str, str] = {}
        self.samplings: list[Sampling] = []
        self.checked: list[Sampling] = []
        self.checkers: list[str] = []
        self.refusal: InvalidRequest | None = None
        self.calls = Counter[str]()
        self.open = 0
        self._ended: dict[str, asyncio.Event] = {}

    async def stream(self, plan: PrefillPlan, sampling: Sampling) -> AsyncIterator[GenerationStep]:
        self.samplings.append(sampling)
        self.open += 1
        self.calls["opened"] += 1
        ended = self._ended[plan.query_id] = asyncio.Event()
        try:
            if await self._enter("prefill", ended):
                yield GenerationStep("", 0, None, "ended")
                return
            loaded = {Tier.GPU: self.cached} if self.loaded is None else self.loaded
            prefill: PrefillResult | None = PrefillResult(
                plan.prompt.token_count,
                self.cached,
                7.0,
                composed_tokens=self.composed,
                recomputed_tokens=self.recomputed,
                deviation=self.deviation,
                in_trees=plan.trees is not None,
                loaded=loaded,
                lost=self.lost,
            )
            whole = self.by_seed.get(sampling.seed, self.words)
            words = whole[: sampling.max_tokens]
            for number, word in enumerate(words, start=1):
                last = number == len(words)
                reason = ("stop" if len(words) == len(whole) else "length") if last else None
                scores = (_token(number, word),) if sampling.logprobs else ()
                yield GenerationStep(word, 1, prefill, reason, scores, unwritten=self.unwritten if last else None)
                prefill = None
                if await self._enter("decode", ended) and not last:
                    yield GenerationStep("", 0, None, "ended")
                    return
        finally:
            self.open -= 1
            del self._ended[plan.query_id]
            # Closing may await, as the abort of a real engine does.
            await asyncio.sleep(0)
            self.calls["closed"] += 1

    async def _enter(self, phase: str, ended: asyncio.Event) -> bool:
        """Enter a phase. Returns whether the stream was ended there."""
        entering, ending = (asyncio.create_task(step) for step in (self.phases.enter(phase), ended.wait()))
        try:
            await asyncio.wait({entering, ending}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            entering.cancel()
            ending.cancel()
        if entering.done() and not entering.cancelled():
            entering.result()
        return ended.is_set()

    async def check(self, sampling: Sampling, caller: str) -> None:
        await self.phases.enter("check")
        self.checked.append(sampling)
        self.checkers.append(caller)
        if self.refusal is not None:
            raise self.refusal

    async def end(self, plan_id: str) -> None:
        await self.phases.enter("end")
        if plan_id in self._ended:
            self._ended[plan_id].set()

    async def carry_out(self, orders: Orders) -> tuple[LostCopy, ...]:
        return ()

    async def residency(self) -> tuple[ResidencyReport, ...]:
        return ()

    async def info(self) -> EngineInfo:
        return EngineInfo(MODEL, "fake", 100, self.kv)

    async def metrics(self) -> dict[str, str]:
        await self.phases.enter("engine_metrics")
        return self.counted

    async def ready(self) -> None:
        await self.phases.enter("engine_ready")


def _token(number: int, word: str) -> TokenLogprob:
    likely = {number + 100: -2.0, number: -1.0, number + 200: -math.inf}
    return TokenLogprob(number, -1.0, likely, {number: word, number + 100: word.upper(), number + 200: "?"})


class Stack:
    """The fakes of one test."""

    def __init__(self) -> None:
        self.phases = Phases()
        self.retriever = FakeRetriever(self.phases)
        self.controller = FakeController(self.phases)
        self.generator = FakeGenerator(self.phases)
        self.layout = FakeLayout()

    @property
    def at_rest(self) -> bool:
        """Whether no search, admission or stream is open."""
        return not (self.retriever.open or self.controller.waiting or self.generator.open)
