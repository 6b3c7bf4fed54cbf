"""Jobs in the background and their progress, one of a kind at a time."""

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any, Literal, TypeAlias
from uuid import uuid4

import msgspec
import structlog

from gateway.background.idle import Outcome
from protocol.errors import Conflict, InternalError, RagtreeError, UnknownJob

log = structlog.get_logger(__name__)

Ending: TypeAlias = Literal["completed", "no_room", "failed"]
"""How the work of a job ends; ``no_room``: the tiers had no room for some of it."""

CacheJobStatus: TypeAlias = Literal["queued", "in_progress", "cancelled"] | Ending


class Prefills(msgspec.Struct, kw_only=True):
    """The outcome of ``total`` prefills so far.

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
        setattr(self, outcome, getattr(self, outcome) + count)
        self.total = max(self.total, self.cached + self.no_room + self.failed)


class CacheJob(msgspec.Struct, kw_only=True):
    """A job and its progress. Changes while it runs; readers must not modify it.

    Of past ``queries``, ``resolved`` found documents and ``unresolved`` did not. ``sequences`` are those of their
    documents. Of ``documents`` that are prefilled by themselves, ``documents_done`` are done; ``chunks`` are those of
    all of them. ``computed_tokens`` were prefilled. Times are seconds since the epoch.
    """

    job_id: str
    created_at: float = msgspec.field(default_factory=time.time)
    updated_at: float = msgspec.field(default_factory=time.time)
    status: CacheJobStatus = "queued"
    queries: int = 0
    resolved: int = 0
    unresolved: int = 0
    sequences: Prefills = msgspec.field(default_factory=Prefills)
    documents: int = 0
    documents_done: int = 0
    chunks: Prefills = msgspec.field(default_factory=Prefills)
    computed_tokens: int = 0
    last_error: RagtreeError | None = None

    @property
    def ended(self) -> bool:
        """Whether the job is finished."""
        return self.status not in ("queued", "in_progress")

    def progressed(self, error: RagtreeError | None = None) -> None:
        """Note that something was done now, or failed with ``error``."""
        self.updated_at = time.time()
        self.last_error = error or self.last_error


Work: TypeAlias = Callable[[CacheJob], Coroutine[Any, Any, Ending]]


class CacheJobs:
    """Runs one job at a time, and keeps the last one. Jobs end with the gateway.

    ``name`` names a job in messages. ``prefix`` begins its ids.
    """

    def __init__(self, name: str, prefix: str) -> None:
        self._name = name
        self._prefix = prefix
        self._last: tuple[CacheJob, asyncio.Task[None]] | None = None

    def start(self, work: Work) -> CacheJob:
        """Start a job, whose ``work`` is done in the background. Raises Conflict while another job runs."""
        if self._last is not None and not self._last[0].ended:
            raise Conflict(f"The {self._name} {self._last[0].job_id} is still running; wait for its end.")
        job = CacheJob(job_id=f"{self._prefix}_{uuid4().hex}")
        task = asyncio.create_task(self._run(job, work))
        # Not a finally in _run: a task that is cancelled before its first step never enters it.
        task.add_done_callback(lambda _: _end(job))
        self._last = job, task
        return job

    def get(self, job_id: str) -> CacheJob:
        """The last job. Raises UnknownJob for any other id."""
        if self._last is None or self._last[0].job_id != job_id:
            raise UnknownJob(f"There is no job {job_id!r}.", "job_id")
        return self._last[0]

    async def cancel(self, job_id: str) -> CacheJob:
        """Cancel the last job, which changes nothing if it has ended. Raises UnknownJob for any other id."""
        job = self.get(job_id)
        await self.shutdown()
        return job

    async def shutdown(self) -> None:
        """Cancel the running job."""
        if self._last is not None:
            _, task = self._last
            task.cancel()
            await asyncio.wait({task})

    async def _run(self, job: CacheJob, work: Work) -> None:
        job.status = "in_progress"
        try:
            job.status = await work(job)
        except RagtreeError as error:
            job.progressed(error)
            job.status = "failed"
        except Exception:
            log.exception("cache_job_defect", job_id=job.job_id)
            job.progressed(InternalError.logged())
            job.status = "failed"


def _end(job: CacheJob) -> None:
    if not job.ended:
        job.status = "cancelled"
    job.progressed()
    log.info("cache_job_ended", job_id=job.job_id, status=job.status, computed_tokens=job.computed_tokens)
