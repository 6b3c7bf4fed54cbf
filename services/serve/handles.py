"""The parts as their callers see them: Ray Serve handles that fulfil the contracts of ``protocol.parts``.

A handle adds three things to the call it passes on: an error of the part arrives as itself and not wrapped in Ray's,
an absent replica arrives as ``Unavailable``, and a call given up is cancelled on the other side too.
"""

import asyncio
from collections.abc import AsyncGenerator, Collection, Sequence
from contextlib import aclosing
from typing import Any

from ray.exceptions import ActorDiedError, ActorUnavailableError, RayTaskError, TaskCancelledError
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError, RayServeException
from ray.serve.handle import DeploymentHandle

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
from protocol.errors import (
    EngineDied,
    InternalError,
    Overloaded,
    RagtreeError,
    RetrieverNotReady,
    Unavailable,
)
from protocol.generation import EngineInfo, GenerationStep, PrefillCost, Sampling
from protocol.kv import LostCopy, Orders, ResidencyReport
from protocol.plans import AdmissionRequest, CompletionReport, ControllerStats, PrefillPlan, SpeculationDecision
from protocol.retrieval import CandidateSet, Chunk, SearchRequest
from protocol.timing import StreamTiming
from services.serve.absence import absence
from services.serve.membership import replicas_of

PATIENCE_S = 1.0
"""How long a replica may take to say that it is ready before Serve is asked whether there is one."""


class ServeHandle:
    """Calls methods of one deployment; ``absent`` is the error that says it is not there."""

    def __init__(self, handle: DeploymentHandle, part: str, absent: type[Unavailable]) -> None:
        self.app: str = handle.app_name
        self._unary = handle
        self._streaming = handle.options(stream=True)
        self._part = part
        self._absent = absent

    def at(self, instance: str) -> "ServeHandle":
        """The same, of one replica of the generator (``InstanceRouter``)."""
        return ServeHandle(self._unary.options(multiplexed_model_id=instance), self._part, self._absent)

    async def call(self, method: str, *arguments: object) -> Any:  # noqa: ANN401 - whatever the method returns
        """The method's result. Raises what the method raised, or ``absent``."""
        response = getattr(self._unary, method).remote(*arguments)
        try:
            return await response
        except asyncio.CancelledError:
            response.cancel()
            raise
        except Exception as error:
            raise self._translated(error) from error

    async def ready(self) -> None:
        """Return when a replica says that it is ready.

        Raises as ``call``; where no replica answers, it says why, and DeployFailed when there will never be one.
        """
        answer = asyncio.create_task(self.call("ready"))
        try:
            # A call to a deployment without a replica waits in silence.
            await asyncio.wait({answer}, timeout=PATIENCE_S)
            if not answer.done() or isinstance(answer.exception(), self._absent):
                error = await absence(self._unary.app_name, self._part, self._absent)
                if error is not None:
                    raise error
            await answer
        finally:
            answer.cancel()

    async def stream(self, method: str, *arguments: object) -> AsyncGenerator[Any, None]:
        """The items the method yields; closing the iterator cancels the method. Raises as ``call``."""
        response = getattr(self._streaming, method).remote(*arguments)
        ended = False
        try:
            async for item in response:
                yield item
            ended = True
        except Exception as error:
            ended = True
            raise self._translated(error) from error
        finally:
            # Serve does not notice by itself that nobody reads any more.
            if not ended:
                response.cancel()

    def _translated(self, error: Exception) -> RagtreeError:
        cause = error.cause if isinstance(error, RayTaskError) else error
        if isinstance(cause, RagtreeError):
            return cause
        if isinstance(cause, BackPressureError):
            return Overloaded(f"the {self._part} has no room for another request")
        if isinstance(
            cause,
            ActorDiedError
            | ActorUnavailableError
            | DeploymentUnavailableError
            | TaskCancelledError
            | RayServeException,
        ):
            return self._absent(f"the {self._part} is not available: it is starting, or being restarted")
        return InternalError(f"the {self._part} failed")


class RetrieverHandle:
    """``protocol.parts.Retriever``, or a shard of one, over a handle; ``name`` is what messages call it."""

    def __init__(self, handle: DeploymentHandle, name: str = "retriever") -> None:
        self._part = ServeHandle(handle, name, RetrieverNotReady)

    def search(self, request: SearchRequest) -> AsyncGenerator[CandidateSet, None]:
        """Search in stages."""
        return self._part.stream("search", request)

    async def put_document(
        self, tenant: str, collection: str, upload: DocumentUpload, idempotency_key: str | None = None
    ) -> IngestJob:
        """Take a document in."""
        job: IngestJob = await self._part.call("put_document", tenant, collection, upload, idempotency_key)
        return job

    async def put_batch(
        self, tenant: str, collection: str, jsonl: bytes, idempotency_key: str | None = None
    ) -> IngestJob:
        """Take a batch in."""
        job: IngestJob = await self._part.call("put_batch", tenant, collection, jsonl, idempotency_key)
        return job

    async def claim_key(self, tenant: str, key: str, body_hash: str) -> None:
        """Bind an idempotency key."""
        await self._part.call("claim_key", tenant, key, body_hash)

    async def delete_document(self, tenant: str, collection: str, document_id: str) -> None:
        """Remove a document."""
        await self._part.call("delete_document", tenant, collection, document_id)

    async def get_document(self, tenant: str, collection: str, document_id: str) -> StoredDocument:
        """Read a document back."""
        document: StoredDocument = await self._part.call("get_document", tenant, collection, document_id)
        return document

    async def chunks(self, tenant: str, collection: str, document_id: str) -> Sequence[Chunk]:
        """The chunks of a document."""
        chunks: Sequence[Chunk] = await self._part.call("chunks", tenant, collection, document_id)
        return chunks

    async def list_documents(self, tenant: str, collection: str, limit: int, after: str | None = None) -> DocumentPage:
        """List a page of documents."""
        page: DocumentPage = await self._part.call("list_documents", tenant, collection, limit, after)
        return page

    async def list_collections(self, tenant: str) -> Sequence[CollectionInfo]:
        """List the tenant's collections."""
        collections: Sequence[CollectionInfo] = await self._part.call("list_collections", tenant)
        return collections

    async def get_job(self, tenant: str, job_id: str) -> IngestJob:
        """The job's state now."""
        job: IngestJob = await self._part.call("get_job", tenant, job_id)
        return job

    async def orphans_of(self, tenant: str, collection: str, document_id: str) -> Sequence[Orphan]:
        """The orphans of a document."""
        orphans: Sequence[Orphan] = await self._part.call("orphans_of", tenant, collection, document_id)
        return orphans

    async def orphans(self, older_than_s: float, limit: int) -> Sequence[Orphan]:
        """The oldest orphans."""
        orphans: Sequence[Orphan] = await self._part.call("orphans", older_than_s, limit)
        return orphans

    async def forget_orphans(self, orphans: Sequence[Orphan]) -> None:
        """Hear that nothing made of them is left."""
        await self._part.call("forget_orphans", orphans)

    async def stats(self) -> RetrieverStats:
        """Counters and gauges."""
        stats: RetrieverStats = await self._part.call("stats")
        return stats

    async def ready(self) -> None:
        """Return when searches can be served."""
        await self._part.ready()


class ControllerHandle:
    """``protocol.parts.Controller`` over a handle."""

    def __init__(self, handle: DeploymentHandle) -> None:
        self._part = ServeHandle(handle, "controller", Unavailable)

    async def on_candidates(self, query_id: str, documents: Sequence[str], final: bool) -> SpeculationDecision:
        """Decide about provisional documents."""
        decision: SpeculationDecision = await self._part.call("on_candidates", query_id, documents, final)
        return decision

    async def speculate(self, query_id: str, documents: Sequence[str], request: AdmissionRequest) -> PrefillPlan | None:
        """Lease a plan on provisional documents."""
        plan: PrefillPlan | None = await self._part.call("speculate", query_id, documents, request)
        return plan

    async def admit(self, request: AdmissionRequest) -> PrefillPlan:
        """Wait for the query's turn."""
        plan: PrefillPlan = await self._part.call("admit", request)
        return plan

    async def prefilled(self, query_id: str, lost: Sequence[LostCopy] = ()) -> None:
        """Hear of a plan's first token."""
        await self._part.call("prefilled", query_id, lost)

    async def complete(self, report: CompletionReport) -> None:
        """Release a lease."""
        await self._part.call("complete", report)

    async def warm(self, request: AdmissionRequest) -> PrefillPlan | None:
        """Lease a plan to an instance that has nothing else to do."""
        plan: PrefillPlan | None = await self._part.call("warm", request)
        return plan

    async def persist(self) -> None:
        """Have on disk what is kept anywhere."""
        await self._part.call("persist")

    async def pin(self, path: CachePath, pinned: bool = True) -> None:
        """Keep a path, or no longer."""
        await self._part.call("pin", path, pinned)

    async def delete_document(self, deletion: DocumentDeletion) -> int:
        """Drop documents from every tier."""
        dropped: int = await self._part.call("delete_document", deletion)
        return dropped

    async def clear(self) -> int:
        """Drop everything."""
        dropped: int = await self._part.call("clear")
        return dropped

    async def tree(self, depth: int, limit: int) -> TreeView:
        """The knowledge tree."""
        view: TreeView = await self._part.call("tree", depth, limit)
        return view

    async def stats(self) -> ControllerStats:
        """Counters and gauges."""
        stats: ControllerStats = await self._part.call("stats")
        return stats

    async def ready(self) -> None:
        """Return when queries can be admitted."""
        await self._part.ready()


class GeneratorHandle:
    """``protocol.parts.Generator`` over a handle, and the engine's cost probe.

    It is ``cachectl.runtime.live_instances.LiveInstances``, too.

    Plans go to the instances that they name, what names none to any.
    """

    def __init__(self, part: ServeHandle) -> None:
        self._part = part
        self._at: dict[str, GeneratorHandle] = {}
        # Where the plans are whose streams are open.
        self._streaming: dict[str, str] = {}

    @classmethod
    def over(cls, handle: DeploymentHandle) -> "GeneratorHandle":
        """All instances of a deployment."""
        return cls(ServeHandle(handle, "generator", EngineDied))

    def names(self) -> Collection[str]:
        """The instances that take plans now; none before the first call."""
        return replicas_of(self._part.app)

    def at(self, instance: str) -> "GeneratorHandle":
        """One instance; its calls raise EngineDied where it is gone, or ends."""
        if instance not in self._at:
            here = self.names()
            self._at = {name: handle for name, handle in self._at.items() if name in here}
            self._at[instance] = GeneratorHandle(self._part.at(instance))
        return self._at[instance]

    async def stream(self, plan: PrefillPlan, sampling: Sampling) -> AsyncGenerator[GenerationStep, None]:
        """Generate for a plan, where it is to be."""
        part = self.at(plan.instance)._part if plan.instance else self._part
        self._streaming[plan.query_id] = plan.instance
        try:
            async with aclosing(part.stream("stream", plan, sampling)) as steps:
                async for step in steps:
                    yield step
        finally:
            del self._streaming[plan.query_id]

    async def end(self, plan_id: str) -> None:
        """End a speculative plan's stream; nothing to do where none is open."""
        instance = self._streaming.get(plan_id)
        if instance is not None:
            await (self.at(instance) if instance else self)._part.call("end", plan_id)

    async def carry_out(self, orders: Orders) -> tuple[LostCopy, ...]:
        """Carry out orders outside of any plan."""
        lost: tuple[LostCopy, ...] = await self._part.call("carry_out", orders)
        return lost

    async def residency(self) -> tuple[ResidencyReport, ...]:
        """What the tiers hold."""
        reports: tuple[ResidencyReport, ...] = await self._part.call("residency")
        return reports

    async def info(self) -> EngineInfo:
        """What is served."""
        info: EngineInfo = await self._part.call("info")
        return info

    async def metrics(self) -> dict[str, str]:
        """What the engines count; of an instance that is silent for ``PATIENCE_S`` seconds, nothing."""
        parts = [self.at(name)._part for name in self.names()] or [self._part]
        asked = [asyncio.create_task(part.call("metrics")) for part in parts]
        try:
            await asyncio.wait(asked, timeout=PATIENCE_S)
            told = [task.result() for task in asked if task.done() and task.exception() is None]
        finally:
            for task in asked:
                task.cancel()
        return {instance: text for answer in told for instance, text in answer.items()}

    async def ready(self) -> None:
        """Return when plans can be executed."""
        await self._part.ready()

    async def probe_prefill(self, cached_tokens: int, new_tokens: int) -> PrefillCost:
        """Measure one prefill on the engine."""
        cost: PrefillCost = await self._part.call("probe_prefill", cached_tokens, new_tokens)
        return cost

    async def time_stream(self, plan: PrefillPlan, max_tokens: int) -> StreamTiming:
        """The times of a plan's stream as the engine's own process sees it: no hop is in them."""
        timing: StreamTiming = await self._part.call("time_stream", plan, max_tokens)
        return timing
