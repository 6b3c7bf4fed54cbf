"""Upload records that all gateways share: idempotency keys and the state of jobs."""

import hashlib

import msgspec
import structlog

from gateway.stores.uploads import UploadRecords
from protocol.documents import IngestJob
from protocol.errors import Unavailable
from services.redis.link import RedisAway, RedisLink

STORE = "uploads"
CLAIM_S = 60.0
"""How long an upload may block its key for other bodies if its gateway dies without releasing the key."""
KEPT_S = 86_400.0
"""How long keys with a job, and jobs, are kept after their last use: a day."""

_BEGIN = """
local held = redis.call('GET', KEYS[1])
if held then
  local hash, job = string.match(held, '^(%S+) (%S*)$')
  if job ~= '' or hash ~= ARGV[1] then return {hash, job} end
end
redis.call('SET', KEYS[1], ARGV[1] .. ' ', 'PX', ARGV[2])
return false
"""

_REFUSED = """
if redis.call('GET', KEYS[1]) == ARGV[1] .. ' ' then redis.call('DEL', KEYS[1]) end
return false
"""

log = structlog.get_logger(__name__)


class RedisUploadRecords(UploadRecords):
    """Upload records in Redis: each idempotency key maps to its body's hash, and to its job once the upload is durable.

    A key without a job is a claim. It ends with the upload, or after ``CLAIM_S``. Keys with a job, and jobs, are kept
    for ``KEPT_S``. Tenants, keys and job ids are stored as digests.
    """

    def __init__(self, link: RedisLink, prefix: str) -> None:
        self._link = link
        self._prefix = prefix
        self._begin = link.client.register_script(_BEGIN)
        self._refused = link.client.register_script(_REFUSED)

    async def begin(self, tenant: str, key: str, body_hash: str) -> str | None:
        """Claim a key; return the job's id if the same body was accepted before.

        Raises Unavailable while an upload with another body holds the key.
        """
        record = self._key("key", tenant, key)
        try:
            held = await self._link.call(
                STORE, lambda: self._begin(keys=[record], args=[body_hash, int(CLAIM_S * 1000)])
            )
        except RedisAway:
            return None
        if held is None:
            return None
        hashed, job_id = (str(part, "ascii") for part in held)
        if hashed == body_hash:
            return job_id
        if not job_id:
            raise Unavailable(
                "An upload with another body is in progress under this Idempotency-Key.", "Idempotency-Key"
            )
        # The retriever decides whether the key is still bound to the other body.
        return None

    async def accepted(self, tenant: str, key: str, body_hash: str, job_id: str) -> None:
        """Record that the upload is durable, with its job."""
        record = self._key("key", tenant, key)
        await self._set(record, f"{body_hash} {job_id}".encode())

    async def refused(self, tenant: str, key: str, body_hash: str) -> None:
        """Release the claim."""
        record = self._key("key", tenant, key)
        try:
            await self._link.call(STORE, lambda: self._refused(keys=[record], args=[body_hash]))
        except RedisAway:
            log.debug("claim_not_given_up")

    async def saw(self, tenant: str, job: IngestJob) -> None:
        """Record a job's state."""
        await self._set(self._key("job", tenant, job.job_id), msgspec.json.encode(job))

    async def last_seen(self, tenant: str, job_id: str) -> IngestJob | None:
        """Return the last recorded state of a job, or None."""
        record = self._key("job", tenant, job_id)
        try:
            noted = await self._link.call(STORE, lambda: self._link.client.get(record))
        except RedisAway:
            return None
        try:
            return None if noted is None else msgspec.json.decode(noted, type=IngestJob)
        except msgspec.DecodeError:
            # Written by another version of RAGTree.
            return None

    async def _set(self, record: str, value: bytes) -> None:
        try:
            await self._link.call(STORE, lambda: self._link.client.set(record, value, px=int(KEPT_S * 1000)))
        except RedisAway:
            log.debug("upload_not_noted")

    def _key(self, kind: str, tenant: str, name: str) -> str:
        digest = hashlib.sha256(msgspec.msgpack.encode((tenant, name))).hexdigest()
        return f"{self._prefix}:{kind}:{digest}"
