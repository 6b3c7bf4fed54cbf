"""Ahead of their turn: what requests that wait for long lack in the engine's memory is loaded and computed meanwhile.

Shared RAG-DCache has a generator of its own for that; here it is the engine itself, where it has nothing better to do:
while all places are taken by requests that have their first tokens, the prompt's part of its steps stays empty.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import structlog

from cachectl.grant import Grant
from cachectl.hands import Hands
from cachectl.leases import Leases
from cachectl.messages import lost_copies
from cachectl.scheduler import Scheduler
from protocol.errors import RagtreeError, UnknownPlan
from protocol.generation import PrefillResult
from protocol.plans import AdmissionRequest, PrefillPlan
from protocol.tiers import Tier

_log = structlog.get_logger(__name__)


class AheadOfTurn:
    """Has the ``hands`` prefill for requests that wait longer than ``after_s``, the longest waiting first.

    ``plan`` makes a grant the plan that is carried out. Belongs to one event loop.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        leases: Leases,
        hands: Hands | None,
        after_s: float | None,
        plan: Callable[[AdmissionRequest, Grant], PrefillPlan],
    ) -> None:
        self._scheduler = scheduler
        self._leases = leases
        self._hands = hands
        self._after_s = after_s
        self._plan = plan
        # In the order in which they became overdue.
        self._overdue: dict[str, AdmissionRequest] = {}
        self._running: dict[str, asyncio.Task[PrefillResult | None]] = {}
        # Loaded from slower tiers or computed.
        self.prepared_tokens = 0

    @contextmanager
    def while_waiting(self, request: AdmissionRequest) -> Iterator[None]:
        """Look after a request while it waits; what is under way for one that gives up ends with it."""
        if self._hands is None or self._after_s is None:
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
        """Begin for whoever is overdue, if there is room now: something may have ended."""
        for query_id, request in list(self._overdue.items()):
            if self._scheduler.may_prepare(query_id):
                del self._overdue[query_id]
                self._begin(request)

    def _note(self, request: AdmissionRequest) -> None:
        self._overdue[request.query_id] = request
        self.look()

    def _begin(self, request: AdmissionRequest) -> None:
        grant = self._leases.prepare(request.query_id, f"{request.query_id}~ahead")
        if grant is not None:
            task = asyncio.get_running_loop().create_task(self._prefill(self._plan(request, grant)))
            self._running[request.query_id] = task
            # Not at the end of the task itself: one that is cancelled before its first step has none.
            task.add_done_callback(partial(self._ended, request.query_id, grant.query_id))

    async def _prefill(self, plan: PrefillPlan) -> PrefillResult | None:
        assert self._hands is not None
        try:
            return await self._hands.prefill(plan)
        except RagtreeError as error:
            _log.warning("nothing_prepared", plan_id=plan.query_id, error=str(error))
        except Exception:
            _log.exception("nothing_prepared", plan_id=plan.query_id)
        return None

    def _ended(self, query_id: str, plan_id: str, task: asyncio.Task[PrefillResult | None]) -> None:
        del self._running[query_id]
        prefill = None if task.cancelled() else task.result()
        try:
            self._leases.release(plan_id, prefill is not None, lost_copies(prefill.lost) if prefill is not None else ())
        except UnknownPlan:
            # Its time ran out, or it went with its instance.
            return
        if prefill is not None:
            loaded = sum(tokens for tier, tokens in prefill.loaded.items() if tier is not Tier.GPU)
            self.prepared_tokens += prefill.prompt_tokens - prefill.cached_tokens + loaded
        self.look()
