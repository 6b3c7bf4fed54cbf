"""What all gateways know of uploads: whose idempotency keys are, and how far jobs have come."""

import hashlib

import msgspec
import structlog

from protocol.documents import IngestJob
from protocol.errors import Unavailable
from services.redis.link import RedisAway, RedisLink

STORE = "uploads"
CLAIM_S = 60.0
"""How long an upload that ends without a word, its gateway being killed, keeps other bodies from its key."""

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


class RedisUploadRecords:
    """Upload records in Redis: under each idempotency key its body's hash, and its job once that is durable.

    A key without a job is a claim, which ends with the upload or after ``CLAIM_S``; the others, and jobs, are kept for
    ``kept_s`` from when they were last seen. Tenants, keys and job ids stand there as digests.
    """

    def __init__(self, link: RedisLink, prefix: str, kept_s: float) -> None:
        self._link = link
        self._prefix = prefix
        self._kept_ms = int(kept_s * 1000)
        self._begin = link.client.register_script(_BEGIN)
        self._refused = link.client.register_script(_REFUSED)

    async def begin(self, tenant: str, key: str, body_hash: str) -> str | None:
        """Claim a key; the id of its job where the same body was accepted before. Raises Unavailable as promised."""
        place = self._place("key", tenant, key)
        try:
            held = await self._link.call(
                STORE, lambda: self._begin(keys=[place], args=[body_hash, int(CLAIM_S * 1000)])
            )
        except RedisAway:
            return None
        if held is None:
            return None
        hashed, job_id = (str(part, "ascii") for part in held)
        if hashed == body_hash:
            return job_id
        if not job_id:
            raise Unavailable("An upload with another body is under way under this Idempotency-Key.", "Idempotency-Key")
        # Whether that still holds, the retriever says.
        return None

    async def accepted(self, tenant: str, key: str, body_hash: str, job_id: str) -> None:
        """Note that the upload is durable, as this job."""
        place = self._place("key", tenant, key)
        await self._set(place, f"{body_hash} {job_id}".encode())

    async def refused(self, tenant: str, key: str, body_hash: str) -> None:
        """Give up the claim."""
        place = self._place("key", tenant, key)
        try:
            await self._link.call(STORE, lambda: self._refused(keys=[place], args=[body_hash]))
        except RedisAway:
            log.debug("claim_not_given_up")

    async def saw(self, tenant: str, job: IngestJob) -> None:
        """Note how far a job has come."""
        await self._set(self._place("job", tenant, job.job_id), msgspec.json.encode(job))

    async def last_seen(self, tenant: str, job_id: str) -> IngestJob | None:
        """The job as it was last noted."""
        place = self._place("job", tenant, job_id)
        try:
            noted = await self._link.call(STORE, lambda: self._link.client.get(place))
        except RedisAway:
            return None
        try:
            return None if noted is None else msgspec.json.decode(noted, type=IngestJob)
        except msgspec.DecodeError:
            # Noted by another version.
            return None

    async def _set(self, place: str, value: bytes) -> None:
        try:
            await self._link.call(STORE, lambda: self._link.client.set(place, value, px=self._kept_ms))
        except RedisAway:
            log.debug("upload_not_noted")

    def _place(self, kind: str, tenant: str, name: str) -> str:
        digest = hashlib.sha256(msgspec.msgpack.encode((tenant, name))).hexdigest()
        return f"{self._prefix}:{kind}:{digest}"
