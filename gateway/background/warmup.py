"""Warm-up of the cache: jobs that replay past queries, most frequent sequences of documents first."""

from collections import Counter
from typing import NamedTuple

from gateway.background.cache_jobs import CacheJob, CacheJobs, Ending
from gateway.background.past_queries import PastQueries
from gateway.background.replay import Replay
from gateway.wire.schemas import WarmBody
from protocol.errors import RagtreeError
from protocol.retrieval import SearchRequest


class WarmUp(CacheJob, kw_only=True):
    """A warm-up job and its progress.

    Its queries make up ``sequences`` of documents, each replayed once: ``warmed`` are new in the tree, ``present`` were
    there already, ``failed`` could not be replayed.
    """

    sequences: int = 0
    warmed: int = 0
    present: int = 0
    failed: int = 0


class WarmUpQueries(NamedTuple):
    """What a warm-up replays: ``queries``, or those in the ``log`` of a tenant, in a collection if one is given."""

    queries: Counter[SearchRequest]
    log: bool
    tenant: str
    collection: str | None


class WarmUps:
    """Starts warm-ups. ``jobs`` runs one at a time.

    A warm-up resolves each distinct query once and counts the sequences of documents. Then it replays one query for
    each sequence, the most frequent sequence first.
    """

    def __init__(self, past: PastQueries, replay: Replay) -> None:
        self.jobs = CacheJobs[WarmUp]("warm-up", "warm")
        self._past = past
        self._replay = replay

    def asked_for(self, body: WarmBody, tenant: str) -> WarmUpQueries:
        """What ``body`` asks for. ``tenant`` applies to queries that name none. Raises QuestionTooLong.

        Takes time for each query.
        """
        owner = body.tenant or tenant
        queries = Counter(self._past.as_search(query, owner, body.collection) for query in body.queries)
        return WarmUpQueries(queries, body.log, owner, body.collection)

    def start(self, asked: WarmUpQueries) -> WarmUp:
        """Start a warm-up. Raises Conflict while another one runs."""

        async def work(job: WarmUp) -> Ending:
            if not asked.log:
                return await self._run(job, asked.queries)
            return await self._run(job, await self._past.logged(asked.tenant, asked.collection))

        return self.jobs.start(lambda job_id: WarmUp(job_id=job_id), work)

    async def _run(self, job: WarmUp, asked: Counter[SearchRequest]) -> Ending:
        sequences = await self._past.sequences(asked, job)
        job.sequences = len(sequences)
        for sequence in sequences:
            await self._prefill(job, sequence.search)
        tried = job.unresolved or job.failed
        return "failed" if tried and not (job.warmed or job.present) else "completed"

    async def _prefill(self, job: WarmUp, search: SearchRequest) -> None:
        try:
            prefilled = await self._replay.prefill(search, evicting=True)
        except RagtreeError as error:
            job.failed += 1
            job.progressed(error)
        else:
            job.warmed += prefilled.outcome == "computed"
            job.present += prefilled.outcome == "present"
            job.computed_tokens += prefilled.computed_tokens
            job.progressed()
