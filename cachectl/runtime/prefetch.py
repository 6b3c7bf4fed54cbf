"""Ahead of their turn: what requests that wait for long lack in the engine's memory is loaded and computed meanwhile.

Shared RAG-DCache has a generator of its own for that; here it is the engine itself, where it has nothing better to do:
while all caches are taken by requests that have their first tokens, the prompt's part of its steps stays empty.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

import structlog

from cachectl.runtime.deliveries import Deliveries
from cachectl.runtime.executor import Executor
from cachectl.runtime.leases import Leases
from cachectl.scheduling.plan_translation import lost_copies
from cachectl.scheduling.scheduler import Scheduler
from cachectl.tree.grant import Grant
from protocol.errors import RagtreeError, UnknownPlan
from protocol.generation import PrefillResult
from protocol.plans import AdmissionRequest, PrefillPlan
from protocol.tiers import Tier

_log = structlog.get_logger(__name__)


class _Prefilled(NamedTuple):
    """What became of a plan: its prefill, if any of it is kept, and the copies that are not there."""

    prefill: PrefillResult | None
    lost: list[tuple[bytes, Tier]]
    failed: bool = False


_NOTHING = _Prefilled(None, [], failed=True)


class Prefetcher:
    """Has the ``executor`` prefill for requests that wait longer than ``after_s``, the longest waiting first.

    One that had to give way is tried again. ``outdated`` says of whose documents some were deleted since: nothing of
    them may be kept. ``plan`` makes a grant the plan that is carried out. Belongs to one event loop.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        leases: Leases,
        executor: Executor | None,
        after_s: float | None,
        outdated: Callable[[AdmissionRequest], bool],
        plan: Callable[[AdmissionRequest, Grant], PrefillPlan],
        deliveries: Deliveries,
    ) -> None:
        self._scheduler = scheduler
        self._leases = leases
        self._executor = executor
        self._after_s = after_s
        self._outdated = outdated
        self._plan = plan
        self._deliveries = deliveries
        # In the order in which they became overdue.
        self._overdue: dict[str, AdmissionRequest] = {}
        self._running: dict[str, asyncio.Task[_Prefilled]] = {}
        # Loaded from slower tiers or computed.
        self.prepared_tokens = 0

    @contextmanager
    def while_waiting(self, request: AdmissionRequest) -> Iterator[None]:
        """Look after a request while it waits; what is under way for one that gives up ends with it."""
        if self._executor is None or self._after_s is None:
            yield
            return
        timer = asyncio.get_running_loop().call_later(self._after_s, self._note, request)
        try:
            yield
        except BaseException:
            if request.query_id in self._running:
                self._running[request.query_id].cancel()
            raise
        finally:
            timer.cancel()
            self._overdue.pop(request.query_id, None)

    def look(self) -> None:
        """Begin for whoever is overdue and waits, if there is room now: something may have ended."""
        for query_id, request in list(self._overdue.items()):
            if self._scheduler.speculative.may_prefetch(query_id):
                del self._overdue[query_id]
                self._begin(request)

    def _note(self, request: AdmissionRequest) -> None:
        self._overdue[request.query_id] = request
        self.look()

    def _begin(self, request: AdmissionRequest) -> None:
        if self._outdated(request):
            return
        try:
            grant = self._leases.prepare(request.query_id, f"{request.query_id}~ahead")
        except RagtreeError as error:
            # Whoever has come by with news of another query must not suffer for this one.
            _log.warning("nothing_prepared", query_id=request.query_id, error=str(error))
            return
        if grant is not None:
            plan = self._plan(request, grant)
            task = asyncio.get_running_loop().create_task(self._prefill(plan))
            self._running[request.query_id] = task
            # Not at the end of the task itself: one that is cancelled before its first step has none.
            task.add_done_callback(partial(self._ended, request, plan))

    async def _prefill(self, plan: PrefillPlan) -> _Prefilled:
        assert self._executor is not None
        try:
            prefill = await self._executor.prefill(plan)
            return _Prefilled(prefill, lost_copies(prefill.lost) if prefill is not None else [])
        except RagtreeError as error:
            _log.warning("nothing_prepared", plan_id=plan.query_id, error=str(error))
        except Exception:
            _log.exception("nothing_prepared", plan_id=plan.query_id)
        return _NOTHING

    def _ended(self, request: AdmissionRequest, plan: PrefillPlan, task: asyncio.Task[_Prefilled]) -> None:
        del self._running[request.query_id]
        prefill, lost, failed = _NOTHING if task.cancelled() else task.result()
        gave_way = not failed and (prefill is None or prefill.prompt_tokens < plan.prompt.token_count)
        try:
            self._leases.complete(plan.query_id, prefill is not None, lost)
        except UnknownPlan:
            # Its time ran out, or it went with its instance.
            return
        if prefill is not None:
            loaded = sum(tokens for tier, tokens in prefill.loaded.items() if tier is not Tier.GPU)
            self.prepared_tokens += prefill.prompt_tokens - prefill.cached_tokens + loaded
        if gave_way and self._scheduler.book.waits(request.query_id):
            self._overdue = {request.query_id: request, **self._overdue}
        self.look()
        self._deliveries.start()
