"""Uploads on their way to the retriever, and what is known of them while it cannot be asked.

The retriever's store is the truth: a job is committed there together with its text before anything is recorded here,
so a record never stands for an upload that was lost on the way. The retriever decides whenever it can be asked.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import NamedTuple, Protocol

import msgspec
from blake3 import blake3

from gateway.readiness import Readiness
from protocol.documents import DocumentUpload, IngestJob
from protocol.errors import RagtreeError, Unavailable
from protocol.parts import Retriever

_PATIENCE_S = 2.0
"""How long the retriever may take to say how far a job has come before the caller is told what was last seen of it."""


class SeenJob(NamedTuple):
    """A job as it is, or ``stale``, as it was when a gateway last saw it."""

    job: IngestJob
    stale: bool = False


class UploadRecords(Protocol):
    """What gateways share about uploads. Calls neither fail nor wait for long: without the store, nothing is known."""

    async def begin(self, tenant: str, key: str, body_hash: str) -> str | None:
        """Note that an upload under an idempotency key begins; the id of its job where it was accepted before.

        Raises Unavailable while an upload with another body is under way under the same key.
        """

    async def accepted(self, tenant: str, key: str, body_hash: str, job_id: str) -> None:
        """Note that the upload is durable, as this job."""

    async def refused(self, tenant: str, key: str, body_hash: str) -> None:
        """Note that the upload came to nothing, so that the key is free again."""

    async def saw(self, tenant: str, job: IngestJob) -> None:
        """Note how far a job has come."""

    async def last_seen(self, tenant: str, job_id: str) -> IngestJob | None:
        """The job as it was last noted; None where nothing is known of it."""


class NoRecords:
    """The records of a gateway that shares none."""

    async def begin(self, tenant: str, key: str, body_hash: str) -> str | None:  # noqa: ARG002
        """Know nothing."""
        return None

    async def accepted(self, tenant: str, key: str, body_hash: str, job_id: str) -> None:
        """Note nothing."""

    async def refused(self, tenant: str, key: str, body_hash: str) -> None:
        """Note nothing."""

    async def saw(self, tenant: str, job: IngestJob) -> None:
        """Note nothing."""

    async def last_seen(self, tenant: str, job_id: str) -> IngestJob | None:  # noqa: ARG002
        """Know nothing."""
        return None


class Uploads:
    """Passes uploads on to the retriever, records what it says, and answers out of the records where it is away."""

    def __init__(self, retriever: Retriever, records: UploadRecords, readiness: Readiness) -> None:
        self._retriever = retriever
        self._records = records
        self._readiness = readiness

    async def put_document(self, tenant: str, collection: str, upload: DocumentUpload, key: str | None) -> SeenJob:
        """The job of a document. Raises what ``Retriever.put_document`` does."""
        put = self._retriever.put_document
        return await self._put(tenant, key, (collection, upload), lambda: put(tenant, collection, upload, key))

    async def put_batch(self, tenant: str, collection: str, jsonl: bytes, key: str | None) -> SeenJob:
        """The job of a batch. Raises what ``Retriever.put_batch`` does."""
        put = self._retriever.put_batch
        return await self._put(tenant, key, (collection, jsonl), lambda: put(tenant, collection, jsonl, key))

    async def job(self, tenant: str, job_id: str) -> SeenJob:
        """A job. Raises UnknownJob, and Unavailable where the retriever is away and nobody has seen the job."""
        get = self._retriever.get_job
        asking = asyncio.ensure_future(self._asked(tenant, job_id, lambda: get(tenant, job_id)))
        try:
            # It may have gone away a moment ago, and nobody has noticed yet.
            answered, _ = await asyncio.wait({asking}, timeout=_PATIENCE_S)
            known = None if answered else await self._records.last_seen(tenant, job_id)
            return await asking if known is None else SeenJob(known, stale=True)
        finally:
            asking.cancel()

    async def _put(
        self, tenant: str, key: str | None, body: object, put: Callable[[], Awaitable[IngestJob]]
    ) -> SeenJob:
        if key is None:
            return await self._asked(tenant, None, put)
        hashed = await asyncio.to_thread(_hash, body)
        before = await self._records.begin(tenant, key, hashed)
        try:
            seen = await self._asked(tenant, before, put)
        except Unavailable:
            # It may have been committed all the same: the claim ends by itself, and the same body is never refused.
            raise
        except RagtreeError:
            await self._records.refused(tenant, key, hashed)
            raise
        # Behind the job: the key must not name one that nobody can find.
        await self._records.accepted(tenant, key, hashed, seen.job.job_id)
        return seen

    async def _asked(self, tenant: str, job_id: str | None, ask: Callable[[], Awaitable[IngestJob]]) -> SeenJob:
        """The job that the retriever gives, or where it is away, what was last seen of the job known before."""
        if job_id is not None and "retriever" in self._readiness.missing():
            # A replica that is being started would let the call wait in silence.
            known = await self._records.last_seen(tenant, job_id)
            if known is not None:
                return SeenJob(known, stale=True)
        try:
            job = await ask()
        except Unavailable:
            known = await self._records.last_seen(tenant, job_id) if job_id is not None else None
            if known is None:
                raise
            return SeenJob(known, stale=True)
        await self._records.saw(tenant, job)
        return SeenJob(job)


def _hash(body: object) -> str:
    return blake3(msgspec.msgpack.encode(body)).hexdigest()
