"""Uploads to the retriever, and records of them for times when the retriever is unavailable.

The retriever's store is authoritative: it commits a job with its text before anything is recorded here, so no record
exists for an upload that was lost. Whenever the retriever is available, its answer counts.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import NamedTuple

import msgspec
from blake3 import blake3

from gateway.readiness import Readiness
from protocol.documents import DocumentUpload, IngestJob
from protocol.errors import RagtreeError, Unavailable
from protocol.parts import Retriever

_PATIENCE_S = 2.0
"""Time for the retriever to answer a request for a job. After that, the caller gets the last record of the job."""


class SeenJob(NamedTuple):
    """A job's current state or, if ``stale``, its last recorded state."""

    job: IngestJob
    stale: bool = False


class UploadRecords:
    """Records of uploads that gateways share. By itself, for a gateway that shares no store, it records nothing.

    Calls do not fail or block; if the store is away, nothing is known.
    """

    async def begin(self, tenant: str, key: str, body_hash: str) -> str | None:  # noqa: ARG002
        """Record the start of an upload with an idempotency key. Returns its job's id if it was accepted before.

        Raises Unavailable while an upload with the same key and another body is running.
        """
        return None

    async def accepted(self, tenant: str, key: str, body_hash: str, job_id: str) -> None:
        """Record that the upload is durable, as this job."""

    async def refused(self, tenant: str, key: str, body_hash: str) -> None:
        """Record that the upload failed, which frees its key."""

    async def saw(self, tenant: str, job: IngestJob) -> None:
        """Record a job's state."""

    async def last_seen(self, tenant: str, job_id: str) -> IngestJob | None:  # noqa: ARG002
        """The last recorded state of the job; None if there is none."""
        return None


class Uploads:
    """Passes uploads to the retriever and records its answers. Answers from the records while the retriever is away."""

    def __init__(self, retriever: Retriever, records: UploadRecords, readiness: Readiness) -> None:
        self._retriever = retriever
        self._records = records
        self._readiness = readiness

    async def put_document(self, tenant: str, collection: str, upload: DocumentUpload, key: str | None) -> SeenJob:
        """Upload a document. Raises what ``Retriever.put_document`` raises."""
        put = self._retriever.put_document
        return await self._put(tenant, key, (collection, upload), lambda: put(tenant, collection, upload, key))

    async def put_batch(self, tenant: str, collection: str, jsonl: bytes, key: str | None) -> SeenJob:
        """Upload a batch. Raises what ``Retriever.put_batch`` raises."""
        put = self._retriever.put_batch
        return await self._put(tenant, key, (collection, jsonl), lambda: put(tenant, collection, jsonl, key))

    async def job(self, tenant: str, job_id: str) -> SeenJob:
        """A job's state. Raises UnknownJob, and Unavailable if the retriever is away and there is no record."""
        get = self._retriever.get_job
        asking = asyncio.ensure_future(self._asked(tenant, job_id, lambda: get(tenant, job_id)))
        try:
            # The retriever may be away without the gateway knowing yet.
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
            # The retriever may have committed it. The claim expires, and the same body is never refused.
            raise
        except RagtreeError:
            await self._records.refused(tenant, key, hashed)
            raise
        # After the job is recorded: the key must not refer to an unknown job.
        await self._records.accepted(tenant, key, hashed, seen.job.job_id)
        return seen

    async def _asked(self, tenant: str, job_id: str | None, ask: Callable[[], Awaitable[IngestJob]]) -> SeenJob:
        """The job that the retriever returns or, while it is away, the last record of ``job_id``."""
        if job_id is not None and "retriever" in self._readiness.missing():
            # A call to a starting replica would wait until the replica is up.
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
