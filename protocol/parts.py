"""The contracts of the four parts, as the gateway sees them.

Plain objects and Ray Serve handles both fulfil them. "Reads only" marks calls that change no state. Every call may
raise ``Unavailable`` if the part is not there.

``services.serve.forwarding`` builds handles and deployments from these classes: an ``async def`` is a unary call, a
plain ``def`` is a stream.
"""

from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Protocol, TypeVar

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
from protocol.generation import EngineInfo, GenerationStep, Sampling, ServedAdapter
from protocol.graph import UNBOUNDED, ContextBudget, GraphRequest, GraphView, Path
from protocol.kv import KvRead, LostCopy, Orders, ResidencyReport
from protocol.plans import (
    AdmissionRequest,
    CompletionReport,
    ControllerStats,
    NotWarmed,
    PrefillPlan,
    SpeculationDecision,
)
from protocol.prompts import ChatMessage, Prompt
from protocol.retrieval import (
    CandidateSet,
    Chunk,
    DocumentChunks,
    EmbeddingRequest,
    Embeddings,
    SearchKind,
    SearchRequest,
)

F = TypeVar("F", bound=Callable[..., object])


def per_query(method: F) -> F:
    """Mark a method that queries call, so that its cost counts: ``services.calls`` carries such calls."""
    method.__dict__["per_query"] = True
    return method


def is_per_query(member: object) -> bool:
    """Whether a member of a contract is a method that queries call."""
    return getattr(member, "per_query", False) is True


class Retriever(Protocol):
    """Stores documents and finds chunks of them."""

    @per_query
    def search(self, request: SearchRequest) -> AsyncGenerator[CandidateSet, None]:
        """Search in stages; reads only.

        Raises UnknownCollection, NoDocuments or UnknownFilterKey, always before the first set, and InvalidRequest if it
        is to be reranked and no reranker is configured. Embedding the question may fail after the first set of a hybrid
        search. A reranker that fails is reported in the final set.
        """

    async def embed(self, request: EmbeddingRequest) -> Embeddings:
        """Embed texts as documents or queries are embedded; reads only. Raises UnknownModel or InvalidRequest."""

    async def put_document(
        self, tenant: str, collection: str, upload: DocumentUpload, idempotency_key: str | None = None
    ) -> IngestJob:
        """Store a document, or replace the one with its id. It is durable on return, and searchable when the job ends.

        Raises UnsupportedMediaType, UnreadableDocument, InvalidEncoding, StorageFull or IdempotencyMismatch.
        """

    async def put_batch(
        self, tenant: str, collection: str, jsonl: bytes, idempotency_key: str | None = None
    ) -> IngestJob:
        """Store the documents of a JSON-lines body.

        A line is ``{id, text, filename?, title?, attributes?, triplets?}``.

        The job skips and reports invalid lines. Raises StorageFull, EmptyDocument (no line at all) or
        IdempotencyMismatch.
        """

    async def delete_document(self, tenant: str, collection: str, document_id: str) -> None:
        """Delete a document and all its chunks in one step. Raises UnknownCollection or UnknownDocument.

        Content that only this document had becomes an orphan.
        """

    async def get_document(self, tenant: str, collection: str, document_id: str) -> StoredDocument:
        """Return a stored document. Raises UnknownCollection or UnknownDocument."""

    async def chunks(self, tenant: str, collection: str, document_id: str) -> DocumentChunks:
        """Return a document's chunks in order; reads only. Raises UnknownCollection or UnknownDocument."""

    async def put_collection(self, tenant: str, collection: str, search: SearchKind | None) -> None:
        """Create a collection, or change how it is searched; None: as the configuration says. Raises StorageFull."""

    async def list_documents(self, tenant: str, collection: str, limit: int, after: str | None = None) -> DocumentPage:
        """Return a page of documents after the cursor ``after``. Raises UnknownCollection or InvalidRequest."""

    async def list_collections(self, tenant: str) -> Sequence[CollectionInfo]:
        """Return the tenant's collections, ordered by name."""

    async def view_graph(self, request: GraphRequest) -> GraphView:
        """Return a part of a collection's graph; reads only. Raises UnknownCollection, NoGraph or UnknownEntity."""

    async def get_job(self, tenant: str, job_id: str) -> IngestJob:
        """Return a job's current state. Raises UnknownJob."""

    async def orphans_of(self, tenant: str, collection: str, document_id: str) -> Sequence[Orphan]:
        """Return the orphans of a deleted document, or of a document's replaced versions; reads only."""

    async def orphans(self, older_than_s: float, limit: int) -> Sequence[Orphan]:
        """Return the oldest orphans of all tenants that are at least ``older_than_s`` seconds old; reads only.

        Those that are given up are left out.
        """

    async def attempt_orphans(self, orphans: Sequence[Orphan]) -> None:
        """Count an attempt to delete the KV of each; durable on return. Raises StorageFull."""

    async def give_up_orphans(self, orphans: Sequence[Orphan], reason: str) -> None:
        """Give up deleting the KV of orphans, unless somebody asks again. Idempotent. Raises StorageFull."""

    async def forget_orphans(self, orphans: Sequence[Orphan]) -> None:
        """Remove orphans whose KV is deleted. Idempotent. Raises StorageFull."""

    async def stats(self) -> RetrieverStats:
        """Return counters since the start, and gauges; reads only."""

    async def ready(self) -> None:
        """Return when searches can be served. Raises RetrieverNotReady."""


class Controller(Protocol):
    """Decides where and when a query is prefilled and what is cached. The only writer of the knowledge tree."""

    @per_query
    async def on_candidates(self, query_id: str, documents: Sequence[str], final: bool) -> SpeculationDecision:
        """Decide about a speculation on the documents of a search stage: content keys in prompt order.

        KEEP on final documents confirms the query's speculation.
        """

    @per_query
    async def speculate(self, query_id: str, documents: Sequence[str], request: AdmissionRequest) -> PrefillPlan | None:
        """Lease a plan for a speculation on provisional documents, under its own id, after a START.

        Returns None if there is no room now. The plan is completed like any other. Another plan may end it early by
        naming it in ``ends``.
        """

    @per_query
    async def admit(self, request: AdmissionRequest) -> PrefillPlan:
        """Wait for the query's turn and lease it a plan.

        Cancelling the call leaves the queue. Raises Overloaded at once if the queue is full.
        """

    @per_query
    async def prefilled(self, query_id: str, lost: Sequence[LostCopy] = (), reads: Sequence[KvRead] = ()) -> None:
        """Record that a plan has its first token: its KV can be reused from now on, and other queries may start.

        ``lost`` and ``reads`` are those of the plan's ``PrefillResult``. Raises UnknownPlan.
        """

    @per_query
    async def complete(self, report: CompletionReport) -> None:
        """Release the lease of a plan, queued or running, and learn from its report.

        Raises UnknownPlan, and changes nothing, if the query holds no plan: it was completed before, or its lease
        expired.
        """

    async def lose(self, instance: str, lost: Sequence[LostCopy]) -> None:
        """Record copies that an instance has reported as lost together with a plan of another controller.

        Copies of unknown nodes are ignored.
        """

    async def warm(self, request: AdmissionRequest, evicting: bool = True) -> PrefillPlan | NotWarmed:
        """Lease a plan that brings a prompt's documents into the tree, on an idle instance.

        Unless it is ``evicting``, all fit beside what the instance's tiers hold.
        """

    async def pin(self, path: CachePath, pinned: bool = True) -> None:
        """Pin a path of the tree, which keeps it from eviction, or unpin it. Raises UnknownNode or PinRefused."""

    async def delete_document(self, deletion: DocumentDeletion) -> int:
        """Delete a document's KV from every tier; return the number of nodes deleted.

        Returns when none of it is left. Raises DeadlineExceeded if plans that use it take too long.
        """

    async def load_adapter(self, name: str, source: str) -> str:
        """Have all instances serve an adapter, now and as they come; return its digest. Either all serve it or none.

        Raises what ``Generator.load_adapter`` raises, and Conflict if the instances find different files.
        """

    async def served_adapters(self) -> dict[str, ServedAdapter]:
        """Return the adapters that all instances serve, by name; reads only."""

    async def unload_adapter(self, name: str) -> None:
        """Have all instances serve an adapter no more. Raises what ``Generator.unload_adapter`` raises."""

    async def clear(self) -> int:
        """Evict everything that no plan uses; return the number of nodes evicted."""

    async def persist(self) -> None:
        """Copy all cached KV to disk, as far as there is room. Called before the stack stops."""

    async def tree(self, depth: int, limit: int) -> TreeView:
        """Return the knowledge tree down to ``depth`` documents: the ``limit`` most used nodes; reads only.

        Raises InvalidRequest for a negative number.
        """

    async def stats(self) -> ControllerStats:
        """Return counters and gauges; reads only."""

    async def ready(self) -> None:
        """Return when queries can be admitted."""


class Generator(Protocol):
    """Executes plans. The only part that holds a model."""

    @per_query
    def stream(self, plan: PrefillPlan, sampling: Sampling) -> AsyncGenerator[GenerationStep, None]:
        """Generate for a plan. Closing the iterator aborts the engine's work within one step.

        Raises EngineNotReady before the first step, EngineDied or EngineFailed at any, InvalidRequest if the engine
        refuses the prompt or the sampling, UnknownModel for an adapter that is not loaded, and what ``check`` raises
        for a schema that the engine has not checked.
        """

    async def check(self, sampling: Sampling, caller: str) -> None:
        """Check that the engine can sample like this; reads only. Raises InvalidRequest, EngineNotReady or EngineDied.

        ``param`` of an InvalidRequest is the sampling's field to blame. ``Sampling.needs_check`` says when to ask.
        Schemas that are new cost processor time, which is bounded for each ``caller``: raises RateLimited, or
        Overloaded if all callers together have too many.
        """

    @per_query
    async def end(self, plan_id: str) -> None:
        """End a speculative plan's stream after the engine's current iteration; its last step has the reason ``ended``.

        Does nothing if there is no such stream. Raises EngineNotReady or EngineDied.
        """

    async def carry_out(self, orders: Orders) -> tuple[LostCopy, ...]:
        """Carry out orders outside of any plan; return the copies that should now exist and do not.

        Raises EngineNotReady or EngineDied.
        """

    async def load_adapter(self, name: str, source: str) -> str:
        """Serve the adapter of a folder or Hugging Face id as a model of this name, too; return its digest. Idempotent.

        Raises InvalidRequest for one that cannot be served, Conflict if the name is taken or no place is free, and
        EngineNotReady or EngineDied.
        """

    async def unload_adapter(self, name: str) -> None:
        """Serve an adapter no more. Requests that it has begun go on, and keep its place until they end.

        Raises UnknownModel, Conflict for an adapter of the configuration, and EngineNotReady or EngineDied.
        """

    async def residency(self) -> tuple[ResidencyReport, ...]:
        """Report what the tiers really hold; reads only. Raises EngineNotReady or EngineDied."""

    async def info(self) -> EngineInfo:
        """Describe the engine and its model; reads only."""

    async def metrics(self) -> dict[str, str]:
        """Return the engines' own metrics by instance, in Prometheus' text format; reads only."""

    async def ready(self) -> None:
        """Return when plans can be executed. Raises EngineNotReady or EngineDied."""


class PromptLayout(Protocol):
    """Turns text into segments of token ids. Stateless."""

    def lay_out(
        self,
        messages: Sequence[ChatMessage],
        documents: Sequence[Chunk],
        max_tokens: int,
        *,
        preamble: bool = True,
        paths: Sequence[Path] = (),
        budget: ContextBudget = UNBOUNDED,
        owner: str | None = None,
    ) -> Prompt:
        """Lay out documents before a conversation that ends with the question, leaving room for the answer.

        ``max_tokens`` is the answer's room. Without ``preamble``, the text that introduces documents is left out.
        ``paths`` of a graph come after the documents, as far as the ``budget`` allows. Documents that do not fit
        beside them are dropped from the end. Their token ids are remembered for their ``owner``, a tenant's namespace.
        Raises InvalidRequest if the model does not accept the conversation, and QuestionTooLong if it does not fit even
        without documents; ``param`` names ``messages``, ``max_tokens`` or ``max_total_tokens``, whichever is to blame.
        """

    def context_text(self, documents: Sequence[Chunk], paths: Sequence[Path]) -> str:
        """The text of these documents and paths as it stands in a prompt."""


class Parts(Protocol):
    """The four parts of one stack."""

    @property
    def retriever(self) -> Retriever:
        """Finds documents."""

    @property
    def controller(self) -> Controller:
        """Schedules queries and manages the cache."""

    @property
    def generator(self) -> Generator:
        """Executes plans."""

    @property
    def layout(self) -> PromptLayout:
        """Builds prompts."""
