"""Precomputation: jobs that prefill the documents of collections, and frequent sequences of them, ahead of time."""

from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Iterator
from functools import partial
from typing import Any, Literal, TypeAlias

import msgspec

from gateway.background.cache_jobs import CacheJob, CacheJobs, Ending
from gateway.background.donors import Donors
from gateway.background.idle_prefill import Outcome, Prefilled
from gateway.background.idle_time import IdleTime
from gateway.background.past_queries import PastQueries
from gateway.background.pinning import system_path
from gateway.background.replay import Replay
from gateway.limits.auth import namespace_of
from gateway.metrics.gateway_metrics import GatewayMetrics
from gateway.wire.schemas import PrecomputeBody
from protocol.cache import TreeNode
from protocol.documents import DocumentInfo
from protocol.errors import RagtreeError, UnknownDocument
from protocol.parts import Controller, Parts, PromptLayout

_DEEPEST = 128
_MOST_NODES = 20_000
"""The controller shows this number within a tenth of a second, in which it admits no query."""


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


_REFUSALS = 64
"""After this number of prefills in a row without room, the next ones find none either, whatever their lengths."""


class RoomLeft:
    """Expects room until many prefills in a row have found none: one that is too long says nothing of shorter ones."""

    def __init__(self) -> None:
        self._refused = 0

    @property
    def expected(self) -> bool:
        """Whether to try another prefill."""
        return self._refused < _REFUSALS

    def note(self, outcome: Outcome) -> None:
        """Record what became of a prefill that was tried."""
        if outcome == "no_room":
            self._refused += 1
        elif outcome == "computed":
            self._refused = 0


Cached: TypeAlias = frozenset[tuple[str, ...]]
"""Contents of the sequences of documents that are cached."""


class Prefills(msgspec.Struct, kw_only=True):
    """What became of ``total`` prefills so far.

    ``computed`` are new in the tree, ``present`` were there already, for ``no_room`` the tiers had no room, and
    ``failed`` raised an error.
    """

    total: int = 0
    computed: int = 0
    present: int = 0
    no_room: int = 0
    failed: int = 0

    @property
    def cached(self) -> int:
        """How many are in the tree."""
        return self.computed + self.present

    def add(self, outcome: Outcome | Literal["failed"], count: int = 1) -> None:
        """Count prefills that ended. There may be more than were expected, if documents have come since."""
        self.computed += count * (outcome == "computed")
        self.present += count * (outcome == "present")
        self.no_room += count * (outcome == "no_room")
        self.failed += count * (outcome == "failed")
        self.total = max(self.total, self.cached + self.no_room + self.failed)


class Precomputation(CacheJob, kw_only=True):
    """A precomputation and its progress.

    Its queries are those of the log, whose most frequent sequences of documents are the ``sequences``. Of
    ``documents``, so many are ``documents_done``; ``chunks`` are those of all of them.
    """

    sequences: Prefills = msgspec.field(default_factory=Prefills)
    documents: int = 0
    documents_done: int = 0
    chunks: Prefills = msgspec.field(default_factory=Prefills)

    @property
    def full(self) -> bool:
        """Whether the tiers have had no room for something."""
        return bool(self.sequences.no_room or self.chunks.no_room)


class Precomputations:
    """Starts precomputations. ``jobs`` runs one at a time.

    A precomputation evicts nothing. It replays the most frequent sequences of the query log, if so many are asked for,
    and then prefills the donors of all documents. What is cached when it begins, it finds in one look at the tree. That
    is how a later one continues an interrupted one, without an engine step. It skips what the tiers have no room for:
    shorter documents may fit. Once nothing fits any more, it only counts the rest.
    """

    def __init__(
        self,
        parts: Parts,
        idle: IdleTime,
        *,
        past: PastQueries,
        replay: Replay,
        donors: Donors,
        metrics: GatewayMetrics,
    ) -> None:
        self.jobs = CacheJobs[Precomputation]("precomputation", "precompute")
        self._parts = parts
        self._idle = idle
        self._past = past
        self._replay = replay
        self._donors = donors
        self._metrics = metrics

    def start(self, body: PrecomputeBody, tenant: str) -> Precomputation:
        """Start a precomputation for ``tenant``, unless the body names another. Raises Conflict while another runs."""
        work = partial(self._run, body, body.tenant or tenant)
        return self.jobs.start(lambda job_id: Precomputation(job_id=job_id), work)

    async def _run(self, body: PrecomputeBody, tenant: str, job: Precomputation) -> Ending:
        look = partial(cached_sequences, self._parts.controller, self._parts.layout, namespace_of(tenant))
        cached, room = await self._idle.spend(look), RoomLeft()
        if body.top is not None:
            await self._prefill_sequences(job, body.top, tenant, body.collection, cached, room)
        if body.donors:
            await self._prefill_collections(job, tenant, body.collection, cached, room)
        if job.full:
            return "no_room"
        failed = job.unresolved or job.sequences.failed or job.chunks.failed
        return "failed" if failed and not (job.sequences.cached or job.chunks.cached) else "completed"

    async def _prefill_sequences(
        self, job: Precomputation, top: int, tenant: str, collection: str | None, cached: Cached, room: RoomLeft
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
            prefill = partial(self._replay.prefill, search, evicting=False)
            await self._prefill(job, job.sequences, room, contents in cached, prefill)

    async def _prefill_collections(
        self, job: Precomputation, tenant: str, collection: str | None, cached: Cached, room: RoomLeft
    ) -> None:
        held = await self._idle.spend(partial(self._parts.retriever.list_collections, tenant))
        wanted = [one for one in held if collection in (None, one.name)]
        job.documents = sum(one.documents for one in wanted)
        job.chunks.total = sum(one.chunks for one in wanted)
        # Listing the documents of a collection that does not exist raises the right error.
        for name in [one.name for one in wanted] if collection is None else [collection]:
            async for document in self._donors.documents(tenant, name):
                await self._prefill_document(job, tenant, document, cached, room)
                job.documents_done += 1
                job.documents = max(job.documents, job.documents_done)

    async def _prefill_document(
        self, job: Precomputation, tenant: str, document: DocumentInfo, cached: Cached, room: RoomLeft
    ) -> None:
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
            prefill = partial(self._donors.prefill, donor)
            outcome = await self._prefill(job, job.chunks, room, donor.contents in cached, prefill)
            self._metrics.prefilled_ingested(outcome)

    async def _prefill(
        self,
        job: Precomputation,
        prefills: Prefills,
        room: RoomLeft,
        is_cached: bool,
        prefill: Callable[[], Coroutine[Any, Any, Prefilled]],
    ) -> Outcome | Literal["failed"]:
        """Do one of the job's prefills, unless it is cached or no room is expected. Counts and returns the outcome."""
        try:
            if is_cached:
                done = Prefilled("present")
            elif not room.expected:
                done = Prefilled("no_room")
            else:
                done = await prefill()
                room.note(done.outcome)
        except RagtreeError as error:
            prefills.add("failed")
            job.progressed(error)
            return "failed"
        prefills.add(done.outcome)
        job.computed_tokens += done.computed_tokens
        job.progressed()
        return done.outcome
