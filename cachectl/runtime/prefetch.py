"""Prefetches for requests that wait: loads and computes what their instance's GPU lacks before their turn comes.

While all slots are taken by requests that have their first tokens, no step of the engine has a prefill, so prefetches
use that part. Shared RAG-DCache runs a generator of its own for this purpose; here the engine itself does it.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count
from typing import NamedTuple

import structlog

from cachectl.runtime.deliveries import Deliveries
from cachectl.runtime.executor import Executor
from cachectl.runtime.leases import Leases
from cachectl.runtime.plan_builder import PlanBuilder
from cachectl.runtime.request_reader import RequestReader
from cachectl.scheduling.plan_translation import lost_copies
from cachectl.scheduling.scheduler import Scheduler
from protocol.errors import RagtreeError, UnknownPlan
from protocol.generation import PrefillResult
from protocol.plans import AdmissionRequest, PrefillPlan
from protocol.tiers import Tier

_log = structlog.get_logger(__name__)


class _Outcome(NamedTuple):
    """How a prefetch ended: its prefill, if any of it is kept, and the copies that turned out to be missing."""

    prefill: PrefillResult | None
    lost: list[tuple[bytes, Tier]]
    failed: bool = False


_FAILED = _Outcome(None, [], failed=True)


class Prefetcher:
    """Has the ``executor`` prefill for requests that wait longer than ``after_s`` seconds, the longest waiting first.

    A prefetch that gave way to a request is tried again. ``after_s`` of None, or no executor, switches prefetching off.
    ``prefetched_tokens`` counts the tokens that were computed or loaded from slower tiers. Belongs to one event loop.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        leases: Leases,
        deliveries: Deliveries,
        requests: RequestReader,
        plans: PlanBuilder,
        executor: Executor | None,
        after_s: float | None,
    ) -> None:
        self._scheduler = scheduler
        self._leases = leases
        self._deliveries = deliveries
        self._requests = requests
        self._plans = plans
        self._executor = executor
        self._after_s = after_s
        self._numbers = count(1)
        # In the order in which they became overdue.
        self._overdue: dict[str, AdmissionRequest] = {}
        self._running: dict[str, asyncio.Task[_Outcome]] = {}
        self.prefetched_tokens = 0

    @contextmanager
    def while_waiting(self, request: AdmissionRequest) -> Iterator[None]:
        """Prefetch for a request while the context is open. If the wait fails, its prefetch is cancelled."""
        if self._executor is None or self._after_s is None:
            yield
            return
        timer = asyncio.get_running_loop().call_later(self._after_s, self._became_overdue, request)
        try:
            yield
        except BaseException:
            if request.query_id in self._running:
                self._running[request.query_id].cancel()
            raise
        finally:
            timer.cancel()
            self._overdue.pop(request.query_id, None)

    def start(self) -> None:
        """Start prefetches for overdue requests where there is room. To be called when a request or a prefill ends."""
        for query_id, request in list(self._overdue.items()):
            if self._scheduler.speculative.may_prefetch(query_id):
                del self._overdue[query_id]
                self._prefetch(request)

    def _became_overdue(self, request: AdmissionRequest) -> None:
        self._overdue[request.query_id] = request
        self.start()

    def _prefetch(self, request: AdmissionRequest) -> None:
        if self._requests.outdated(request):
            return
        try:
            grant = self._leases.prefetch(request.query_id, self._new_plan_id(request))
        except RagtreeError as error:
            # Logged, not raised: the caller is reporting on another query.
            _log.warning("a prefetch could not start", query_id=request.query_id, error=str(error))
            return
        if grant is not None:
            plan = self._plans.build(request, grant, speculative=True)
            self._deliveries.start()
            task = asyncio.get_running_loop().create_task(self._prefill(plan))
            self._running[request.query_id] = task
            # A callback, because a task that is cancelled before its first step runs none of its code.
            task.add_done_callback(partial(self._ended, request, plan))

    def _new_plan_id(self, request: AdmissionRequest) -> str:
        return f"{request.query_id}~prefetch-{next(self._numbers)}"

    async def _prefill(self, plan: PrefillPlan) -> _Outcome:
        assert self._executor is not None
        try:
            prefill = await self._executor.prefill(plan)
            return _Outcome(prefill, lost_copies(prefill.lost) if prefill is not None else [])
        except RagtreeError as error:
            _log.warning("a prefetch failed", plan_id=plan.query_id, error=str(error))
        except Exception:
            _log.exception("a prefetch failed", plan_id=plan.query_id)
        return _FAILED

    def _ended(self, request: AdmissionRequest, plan: PrefillPlan, task: asyncio.Task[_Outcome]) -> None:
        del self._running[request.query_id]
        prefill, lost, failed = _FAILED if task.cancelled() else task.result()
        gave_way = not failed and (prefill is None or prefill.prompt_tokens < plan.prompt.token_count)
        try:
            self._leases.complete(plan.query_id, prefill is not None, lost)
        except UnknownPlan:
            # Its lease has run out, or ended with its instance.
            return
        if prefill is not None:
            loaded = sum(tokens for tier, tokens in prefill.loaded.items() if tier is not Tier.GPU)
            self.prefetched_tokens += prefill.prompt_tokens - prefill.cached_tokens + loaded
        if gave_way and self._scheduler.book.waits(request.query_id):
            self._overdue = {request.query_id: request, **self._overdue}
        self.start()
        self._deliveries.start()
