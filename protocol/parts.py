"""The contracts of the four parts, as the gateway knows them.

A plain object and a Ray Serve handle both fulfil them. Which calls change state is said of each; every call may raise
``Unavailable`` when the part is not there.
"""

from collections.abc import AsyncGenerator, Sequence
from typing import Protocol

from protocol.cache import CachePath, DocumentDeletion, TreeView
from protocol.documents import (
    CollectionInfo,
    DocumentPage,
    DocumentUpload,
    IngestJob,
    Orphan,
    RetrieverStats,
    StoredDocument,
)
from protocol.generation import EngineInfo, GenerationStep, Sampling
from protocol.kv import LostCopy, Orders, ResidencyReport
from protocol.plans import AdmissionRequest, CompletionReport, ControllerStats, PrefillPlan, SpeculationDecision
from protocol.prompts import ChatMessage, Prompt
from protocol.retrieval import CandidateSet, Chunk, SearchRequest


class Retriever(Protocol):
    """Keeps documents and finds chunks of them."""

    def search(self, request: SearchRequest) -> AsyncGenerator[CandidateSet, None]:
        """Search in stages; reads only.

        Raises UnknownCollection, NoDocuments or UnknownFilterKey, all before the first set.
        """

    async def put_document(
        self, tenant: str, collection: str, upload: DocumentUpload, idempotency_key: str | None = None
    ) -> IngestJob:
        """Take a document in, or replace the one of its id; durable when this returns, searchable when the job ends.

        Raises UnsupportedMediaType, UnreadableDocument, InvalidEncoding, StorageFull or IdempotencyMismatch.
        """

    async def put_batch(
        self, tenant: str, collection: str, jsonl: bytes, idempotency_key: str | None = None
    ) -> IngestJob:
        """Take in the documents of a JSON-lines body, one ``{id, text, filename?, title?, attributes?}`` a line.

        A broken line is skipped and reported in the job. Raises StorageFull, EmptyDocument (no line at all) or
        IdempotencyMismatch.
        """

    async def delete_document(self, tenant: str, collection: str, document_id: str) -> None:
        """Remove a document and all its chunks in one step. Raises UnknownCollection or UnknownDocument.

        What it alone had is among the orphans from then on.
        """

    async def get_document(self, tenant: str, collection: str, document_id: str) -> StoredDocument:
        """Read a document back. Raises UnknownCollection or UnknownDocument."""

    async def chunks(self, tenant: str, collection: str, document_id: str) -> Sequence[Chunk]:
        """The chunks of a document in their order; reads only. Raises UnknownCollection or UnknownDocument."""

    async def list_documents(self, tenant: str, collection: str, limit: int, after: str | None = None) -> DocumentPage:
        """List a page of documents behind the cursor ``after``. Raises UnknownCollection or InvalidRequest."""

    async def list_collections(self, tenant: str) -> Sequence[CollectionInfo]:
        """List the tenant's collections by name."""

    async def get_job(self, tenant: str, job_id: str) -> IngestJob:
        """The job's state now. Raises UnknownJob."""

    async def orphans_of(self, tenant: str, collection: str, document_id: str) -> Sequence[Orphan]:
        """Contents that went with a deleted document, or with what it was replaced by, and are orphans; reads only."""

    async def orphans(self, older_than_s: float, limit: int) -> Sequence[Orphan]:
        """The oldest contents of all tenants that are orphans for so many seconds; reads only."""

    async def forget_orphans(self, orphans: Sequence[Orphan]) -> None:
        """Hear that nothing made of these contents is left. Doing so twice does no harm. Raises StorageFull."""

    async def stats(self) -> RetrieverStats:
        """Counters since the start, and gauges; reads only."""

    async def ready(self) -> None:
        """Return when searches can be served; raises RetrieverNotReady."""


class Controller(Protocol):
    """Decides where and when a query is prefilled, and what is kept of it. The single writer of the knowledge tree."""

    async def on_candidates(self, query_id: str, documents: Sequence[str], final: bool) -> SpeculationDecision:
        """Decide about generating on what a stage of the search has found: content keys in prompt order.

        KEEP on final documents confirms the query's speculation.
        """

    async def speculate(self, query_id: str, documents: Sequence[str], request: AdmissionRequest) -> PrefillPlan | None:
        """Lease a plan, under an id of its own, to generate on the provisional documents that a query was to START on.

        None where there is no room for it now. It is completed like any other, and ended before that when another plan
        names it in ``ends``.
        """

    async def admit(self, request: AdmissionRequest) -> PrefillPlan:
        """Wait for the query's turn and lease it a plan.

        Cancelling the call gives up the place. Raises Overloaded at once when the queue is full.
        """

    async def prefilled(self, query_id: str, lost: Sequence[LostCopy] = ()) -> None:
        """Hear that a plan has its first token: what it computed serves others from now on, and others may start.

        Raises UnknownPlan.
        """

    async def complete(self, report: CompletionReport) -> None:
        """Release the lease of a plan, queued or running, and learn from it.

        Raises UnknownPlan, and changes nothing, for a query that holds none: it was completed before, or its lease ran
        out.
        """

    async def warm(self, request: AdmissionRequest) -> PrefillPlan | None:
        """Lease a plan that brings a prompt's documents into the tree; None unless an instance has nothing else to do.

        None also where nothing of it is missing.
        """

    async def pin(self, path: CachePath, pinned: bool = True) -> None:
        """Keep a path of the tree whatever comes, or no longer. Raises UnknownNode or PinRefused."""

    async def delete_document(self, deletion: DocumentDeletion) -> int:
        """Drop documents from every tier; how many nodes of the tree went.

        Returns when nothing of them is left anywhere. Raises DeadlineExceeded when plans that use them take too long.
        """

    async def clear(self) -> int:
        """Drop everything that no plan uses; how many nodes went."""

    async def persist(self) -> None:
        """Have on disk what is kept anywhere, as far as there is room: before everything stops."""

    async def tree(self, depth: int, limit: int) -> TreeView:
        """The knowledge tree down to ``depth`` documents, and of those the ``limit`` most used; reads only.

        Raises InvalidRequest for a negative number.
        """

    async def stats(self) -> ControllerStats:
        """Counters and gauges; reads only."""

    async def ready(self) -> None:
        """Return when queries can be admitted."""


class Generator(Protocol):
    """Executes plans: the only part that holds a model."""

    def stream(self, plan: PrefillPlan, sampling: Sampling) -> AsyncGenerator[GenerationStep, None]:
        """Generate for a plan; closing the iterator aborts the engine's work within one step.

        Raises EngineNotReady before the first step, EngineDied at any.
        """

    async def end(self, plan_id: str) -> None:
        """End a speculative plan's stream after the engine's iteration in hand; its last step has the reason ``ended``.

        Does nothing where there is no such stream. Raises EngineNotReady or EngineDied.
        """

    async def carry_out(self, orders: Orders) -> tuple[LostCopy, ...]:
        """Carry out orders outside of any plan, to their end; copies that should be there now and are not.

        Raises EngineNotReady or EngineDied.
        """

    async def residency(self) -> tuple[ResidencyReport, ...]:
        """What the tiers hold by their own account; reads only. Raises EngineNotReady or EngineDied."""

    async def info(self) -> EngineInfo:
        """What is served; reads only."""

    async def metrics(self) -> dict[str, str]:
        """What the engines count themselves, in Prometheus' text format by instance; reads only."""

    async def ready(self) -> None:
        """Return when plans can be executed; raises EngineNotReady or EngineDied."""


class PromptLayout(Protocol):
    """Turns words into segments of token ids. Pure: no state that a caller could see."""

    def lay_out(self, messages: Sequence[ChatMessage], documents: Sequence[Chunk], max_tokens: int) -> Prompt:
        """Lay out documents in front of a conversation that ends with the question, leaving room for the answer.

        ``max_tokens`` is the room. Documents that do not fit are dropped from the tail. Raises InvalidRequest when the
        model takes no such conversation, and QuestionTooLong when even no document fits, its ``param`` saying which of
        ``messages`` and ``max_tokens`` is to blame.
        """


class Parts(Protocol):
    """The four parts of one stack."""

    @property
    def retriever(self) -> Retriever:
        """Finds the documents."""

    @property
    def controller(self) -> Controller:
        """Decides on each query's turn and on what is kept of it."""

    @property
    def generator(self) -> Generator:
        """Executes what was decided."""

    @property
    def layout(self) -> PromptLayout:
        """Makes the prompts."""
