"""Warm-up of the cache: jobs that replay past queries, most frequent sequences of documents first."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from uuid import uuid4

import msgspec
import structlog

from gateway.background.replay import Replay
from gateway.settings import GatewaySettings
from gateway.stores.query_log import QueryLog
from gateway.wire.schemas import WarmBody, WarmQuery
from protocol.documents import UNFINISHED, JobStatus
from protocol.errors import Conflict, InternalError, RagtreeError, Unavailable, UnknownJob
from protocol.retrieval import SearchRequest

log = structlog.get_logger(__name__)


class WarmUp(msgspec.Struct, kw_only=True):
    """A warm-up job and its progress. Changes while it runs; readers must not modify it.

    Of ``queries``, ``resolved`` found documents and ``unresolved`` did not. They make up ``sequences`` of documents,
    each replayed once: ``warmed`` are new in the tree, ``present`` were there already, ``failed`` could not be
    replayed. ``computed_tokens`` were prefilled for them. Times are seconds since the epoch.
    """

    job_id: str
    created_at: float
    updated_at: float
    status: JobStatus = "queued"
    queries: int = 0
    resolved: int = 0
    unresolved: int = 0
    sequences: int = 0
    warmed: int = 0
    present: int = 0
    failed: int = 0
    computed_tokens: int = 0
    last_error: RagtreeError | None = None


class WarmUps:
    """Runs one warm-up at a time, and keeps the last one's progress.

    A warm-up resolves each distinct query once and counts the sequences of documents. Then it replays one query for
    each sequence, the most frequent sequence first.
    """

    def __init__(
        self, replay: Replay, query_log: QueryLog, settings: GatewaySettings, clock: Callable[[], float] = time.time
    ) -> None:
        self._replay = replay
        self._query_log = query_log
        self._settings = settings
        self._clock = clock
        self._last: WarmUp | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self, body: WarmBody, tenant: str) -> WarmUp:
        """Start a warm-up with the body's queries or the query log. ``tenant`` applies to queries that name none.

        Raises Conflict while another warm-up runs, and QuestionTooLong.
        """
        if self._last is not None and self._last.status in UNFINISHED:
            raise Conflict(f"The warm-up {self._last.job_id} is still running; wait for its end.")

        def as_search(query: WarmQuery) -> SearchRequest:
            named = query if query.collection else query.model_copy(update={"collection": body.collection})
            return named.to_search(
                query.query.strip(),
                "queries",
                query.tenant or body.tenant or tenant,
                self._settings,
                query.context[: self._settings.max_query_chars],
            )

        given = None if body.log else Counter(map(as_search, body.queries))
        now = self._clock()
        job = WarmUp(job_id=f"warm_{uuid4().hex}", created_at=now, updated_at=now)
        self._last = job
        self._task = asyncio.create_task(self._run(job, given, as_search))
        return job

    def get(self, job_id: str) -> WarmUp:
        """The last warm-up's progress. Raises UnknownJob for any other id."""
        if self._last is None or self._last.job_id != job_id:
            raise UnknownJob(f"There is no job {job_id!r}.", "job_id")
        return self._last

    async def shutdown(self) -> None:
        """Cancel the running warm-up."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    async def _run(
        self, job: WarmUp, given: Counter[SearchRequest] | None, as_search: Callable[[WarmQuery], SearchRequest]
    ) -> None:
        job.status = "in_progress"
        try:
            asked = await self._query_log.counted(as_search) if given is None else given
            job.queries = asked.total()
            for search in await self._resolved(job, asked):
                await self._prefill(job, search)
            tried = job.unresolved or job.failed
            job.status = "failed" if tried and not (job.warmed or job.present) else "completed"
        except Unavailable as error:
            job.last_error = error
            job.status = "failed"
        except Exception:
            log.exception("warm_up_defect", job_id=job.job_id)
            job.last_error = InternalError.logged()
            job.status = "failed"
        finally:
            job.updated_at = self._clock()

    async def _resolved(self, job: WarmUp, asked: Counter[SearchRequest]) -> list[SearchRequest]:
        """One query for each sequence of documents, the most frequent sequence first."""
        counts = Counter[tuple[str, tuple[str, ...]]]()
        first: dict[tuple[str, tuple[str, ...]], SearchRequest] = {}
        for search, times in asked.items():
            try:
                sequence = search.tenant, await self._replay.documents(search)
            except RagtreeError as error:
                job.unresolved += times
                job.last_error = error
            else:
                job.resolved += times
                counts[sequence] += times
                first.setdefault(sequence, search)
            job.updated_at = self._clock()
        job.sequences = len(counts)
        return [first[sequence] for sequence, _ in counts.most_common()]

    async def _prefill(self, job: WarmUp, search: SearchRequest) -> None:
        try:
            computed = await self._replay.prefill(search)
        except RagtreeError as error:
            job.failed += 1
            job.last_error = error
        else:
            job.warmed += bool(computed)
            job.present += not computed
            job.computed_tokens += computed
        job.updated_at = self._clock()
