"""Jobs that fill the cache: warm-ups replay past queries, precomputations prefill documents ahead of time."""

from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Iterator
from functools import partial
from typing import Any, Literal, TypeAlias

from gateway.background.cache_jobs import CacheJob, CacheJobs, Ending, Prefills
from gateway.background.donors import Donors
from gateway.background.idle import IdleTime, Outcome, Prefilled
from gateway.background.past_queries import PastQueries
from gateway.background.pinning import system_path
from gateway.limits.auth import namespace_of
from gateway.metrics.gateway_metrics import GatewayMetrics
from gateway.wire.schemas import PrecomputeBody, WarmBody
from protocol.cache import TreeNode
from protocol.documents import DocumentInfo
from protocol.errors import RagtreeError, UnknownDocument
from protocol.parts import Controller, Parts, PromptLayout
from protocol.retrieval import SearchRequest

_DEEPEST = 128
_MOST_NODES = 20_000
"""The controller shows this number within a tenth of a second, in which it admits no query."""
_REFUSALS = 64
"""After this number of prefills in a row without room, the next ones find none either, whatever their lengths."""

Queries: TypeAlias = Counter[SearchRequest] | Callable[[], Coroutine[Any, Any, Counter[SearchRequest]]]
"""What a warm-up replays, or what reads it in the query log."""

_Prefill: TypeAlias = Callable[[], Coroutine[Any, Any, Prefilled]]


class CacheFilling:
    """Starts the jobs: ``warm_ups`` and ``precomputations`` each run one at a time.

    A warm-up resolves each distinct query once and counts the sequences of documents. Then it replays one query for
    each sequence, the most frequent sequence first.

    A precomputation evicts nothing. It replays the most frequent sequences of the query log, if any are asked for,
    and then prefills the donors of all documents. It finds cached documents in one look at the tree, when it begins. So
    a later one continues an interrupted one without an engine step. It skips what the tiers have no room for: shorter
    documents may fit. Once nothing fits any more, it only counts the rest.
    """

    def __init__(
        self, parts: Parts, idle: IdleTime, past: PastQueries, donors: Donors, metrics: GatewayMetrics
    ) -> None:
        self.warm_ups = CacheJobs("warm-up", "warm")
        self.precomputations = CacheJobs("precomputation", "precompute")
        self._parts = parts
        self._idle = idle
        self._past = past
        self._donors = donors
        self._metrics = metrics

    def asked_for(self, body: WarmBody, tenant: str) -> Queries:
        """What ``body`` asks for. ``tenant`` applies to queries that name none. Raises QuestionTooLong.

        Takes time for each query.
        """
        owner = body.tenant or tenant
        if body.log:
            return partial(self._past.logged, owner, body.collection)
        return Counter(self._past.as_search(query, owner, body.collection) for query in body.queries)

    def warm_up(self, asked: Queries) -> CacheJob:
        """Start a warm-up. Raises Conflict while another one runs."""
        return self.warm_ups.start(partial(self._warm_up, asked))

    def precompute(self, body: PrecomputeBody, tenant: str) -> CacheJob:
        """Start a precomputation for ``tenant``, unless the body names another. Raises Conflict while another runs."""
        return self.precomputations.start(partial(self._precompute, body, body.tenant or tenant))

    async def _warm_up(self, asked: Queries, job: CacheJob) -> Ending:
        sequences = await self._past.sequences(await asked() if callable(asked) else asked, job)
        job.sequences.total = len(sequences)
        for _, search in sequences:
            await _prefill(job, job.sequences, partial(self._past.prefill, search, evicting=True))
        return _ending(job)

    async def _precompute(self, body: PrecomputeBody, tenant: str, job: CacheJob) -> Ending:
        look = partial(cached_sequences, self._parts.controller, self._parts.layout, namespace_of(tenant))
        tiers = _Tiers(await self._idle.spend(look))
        if body.top is not None:
            await self._prefill_sequences(job, body.top, tenant, body.collection, tiers)
        if body.donors:
            await self._prefill_collections(job, tenant, body.collection, tiers)
        return "no_room" if job.sequences.no_room or job.chunks.no_room else _ending(job)

    async def _prefill_sequences(
        self, job: CacheJob, top: int, tenant: str, collection: str | None, tiers: "_Tiers"
    ) -> None:
        logged = await self._past.logged(tenant, collection)
        asked = Counter(
            {
                search: times
                for search, times in logged.items()
                if search.tenant == tenant and collection in (None, search.collection)
            }
        )
        frequent = (await self._past.sequences(asked, job))[:top]
        job.sequences.total = len(frequent)
        for contents, search in frequent:
            prefill = partial(self._past.prefill, search, evicting=False)
            await _prefill(job, job.sequences, partial(tiers.prefill, contents, prefill))

    async def _prefill_collections(self, job: CacheJob, tenant: str, collection: str | None, tiers: "_Tiers") -> None:
        held = await self._idle.spend(partial(self._parts.retriever.list_collections, tenant))
        wanted = [one for one in held if collection in (None, one.name)]
        job.documents = sum(one.documents for one in wanted)
        job.chunks.total = sum(one.chunks for one in wanted)
        # Listing the documents of a collection that does not exist raises the right error.
        for name in [one.name for one in wanted] if collection is None else [collection]:
            async for document in self._donors.documents(tenant, name):
                await self._prefill_document(job, tenant, document, tiers)
                job.documents_done += 1
                job.documents = max(job.documents, job.documents_done)

    async def _prefill_document(self, job: CacheJob, tenant: str, document: DocumentInfo, tiers: "_Tiers") -> None:
        try:
            donors = await self._donors.of_document(tenant, document.collection, document.document_id)
        except UnknownDocument:
            # It has been deleted since.
            return
        except RagtreeError as error:
            job.chunks.add("failed", document.chunks)
            job.progressed(error)
            return
        for donor in donors:
            prefill = partial(tiers.prefill, donor.contents, partial(self._donors.prefill, donor))
            self._metrics.ingested.labels(await _prefill(job, job.chunks, prefill)).inc()


async def _prefill(job: CacheJob, prefills: Prefills, prefill: _Prefill) -> Outcome | Literal["failed"]:
    """Do one of a job's prefills. Counts and returns its outcome."""
    try:
        done = await prefill()
    except RagtreeError as error:
        prefills.add("failed")
        job.progressed(error)
        return "failed"
    prefills.add(done.outcome)
    job.computed_tokens += done.computed_tokens
    job.progressed()
    return done.outcome


def _ending(job: CacheJob) -> Ending:
    failed = job.unresolved or job.sequences.failed or job.chunks.failed
    return "failed" if failed and not (job.sequences.cached or job.chunks.cached) else "completed"


class _Tiers:
    """What a precomputation knows of the tiers: the sequences that were ``cached``, and whether there is room left.

    It expects none after many prefills in a row have found none: one that is too long says nothing of shorter ones.
    """

    def __init__(self, cached: frozenset[tuple[str, ...]]) -> None:
        self._cached = cached
        self._refused = 0

    async def prefill(self, contents: tuple[str, ...], prefill: _Prefill) -> Prefilled:
        """Prefill these contents, unless they are cached or no room is expected."""
        if contents in self._cached:
            return Prefilled("present")
        if self._refused >= _REFUSALS:
            return Prefilled("no_room")
        done = await prefill()
        if done.outcome == "no_room":
            self._refused += 1
        elif done.outcome == "computed":
            self._refused = 0
        return done


async def cached_sequences(controller: Controller, layout: PromptLayout, namespace: str) -> frozenset[tuple[str, ...]]:
    """Contents of the sequences of documents that some tier holds; of a larger tree, of its 20,000 most used nodes.

    Raises Unavailable.
    """
    view = await controller.tree(_DEEPEST, _MOST_NODES)
    below = view.namespaces.get(namespace, ())
    for key in system_path(layout):
        below = tuple(child for node in below if node.content == key for child in node.children)
    return frozenset(_sequences(below, ()))


def _sequences(nodes: Iterable[TreeNode], front: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    for node in nodes:
        if node.places:
            yield (sequence := (*front, node.content))
            yield from _sequences(node.children, sequence)
