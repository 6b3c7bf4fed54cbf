"""Leases: which queries hold a plan and until when, and which wait for one."""

import asyncio
from collections.abc import Callable, Collection, Iterable, Sequence

from cachectl.runtime.handover import Handover
from cachectl.scheduling.request import Request
from cachectl.scheduling.scheduler import Scheduler
from cachectl.tree.grant import Grant
from protocol.errors import EngineDied, RagtreeError
from protocol.kv import NO_PEERS, Peers
from protocol.tiers import Tier


class Leases:
    """Lets callers wait for the scheduler's grants, and ends grants whose holders are lost.

    A lease ends once: when it is completed, ``lease_s`` seconds after it was granted, or with its instance. Its first
    token is overdue after ``first_token_s`` seconds. ``expired`` counts the leases that ran out, ``cancelled`` the
    waits that the waiting task gave up. Belongs to one event loop.
    """

    def __init__(self, scheduler: Scheduler, clock: Callable[[], float], lease_s: float, first_token_s: float) -> None:
        self._scheduler = scheduler
        self._clock = clock
        self._lease_s = lease_s
        self._first_token_s = first_token_s
        self._handover = Handover(scheduler, clock, self._grant)
        self._turns: dict[str, asyncio.Future[Grant]] = {}
        self._deadlines: dict[str, float] = {}
        # When the first token of each lease without one is overdue.
        self._prefilling: dict[str, float] = {}
        # The queries that have yet to end, by the future that waits for all.
        self._watched: dict[asyncio.Future[None], set[str]] = {}
        self.expired = 0
        self.cancelled = 0

    async def admit(self, request: Request) -> Grant:
        """Wait for a request's turn. Cancelling the call gives the turn up.

        Raises what ``Scheduler.admit`` raises, at once or when the request's instance is lost while it waits, and
        EngineDied if the instance is lost just as the turn comes.
        """
        grant = self._scheduler.admit(request, self._clock())
        if grant is None:
            self._handover.schedule()
            return await self._turn(request.query_id)
        self._lease(grant)
        return grant

    def admit_at_once(self, request: Request, among: Collection[str]) -> Grant:
        """Lease a grant on one of some idle instances."""
        grant = self._scheduler.admit(request, self._clock(), among)
        assert grant is not None, "an idle instance made a request wait"
        self._lease(grant)
        return grant

    def speculate(self, request: Request) -> Grant | None:
        """Lease the grant of ``SpeculativeSlots.admit``, if there is one."""
        return self._leased(self._scheduler.speculative.admit(request, self._clock()))

    def ahead(
        self, start: Callable[[str, Request, float], Grant | None], query_id: str, request: Request
    ) -> Grant | None:
        """Lease the grant of what ``SpeculativeSlots`` starts for a waiting query, if there is one."""
        return self._leased(start(query_id, request, self._clock()))

    def prefilled(self, query_id: str, lost: Sequence[tuple[bytes, Tier]] = ()) -> None:
        """Record a lease's first token, and start the requests whose turn it makes. Raises UnknownPlan.

        ``lost`` is that of ``Scheduler.prefilled``.
        """
        granted = self._scheduler.prefilled(query_id, self._clock(), lost)
        self._prefilling.pop(query_id, None)
        self._handover.prefill_ended(query_id)
        self._grant(granted)

    def complete(
        self,
        query_id: str,
        kept: bool,
        lost: Sequence[tuple[bytes, Tier]] = (),
        unwritten: Sequence[tuple[bytes, Tier]] | None = None,
    ) -> None:
        """End a lease or a wait, and start the requests whose turn that makes. Raises UnknownPlan.

        ``kept``, ``lost`` and ``unwritten`` are those of ``Scheduler.complete``.
        """
        granted = self._scheduler.complete(query_id, self._clock(), kept, lost, unwritten)
        turn = self._turns.pop(query_id, None)
        if turn is not None:
            turn.cancel()
        self._completed(query_id)
        self._grant(granted)

    def expire(self) -> None:
        """End leases that have run out: their holders are gone, or would have completed them.

        A lease whose first token is overdue goes on, but no request waits for it any longer. So a lost holder does not
        keep an instance idle until its lease runs out.
        """
        now = self._clock()
        for query_id in [query_id for query_id, deadline in self._deadlines.items() if deadline <= now]:
            self.complete(query_id, kept=False)
            self.expired += 1
        for query_id in [query_id for query_id, deadline in self._prefilling.items() if deadline <= now]:
            del self._prefilling[query_id]
            self._handover.prefill_ended(query_id)
            self._grant(self._scheduler.stalled(query_id, now))

    def completion_of(self, queries: Iterable[str]) -> asyncio.Future[None]:
        """A future that is done when all these queries have ended. Each of them holds a lease or waits for one."""
        left = set(queries)
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if left:
            self._watched[done] = left
            done.add_done_callback(self._watched.pop)
        else:
            done.set_result(None)
        return done

    def restart(self, instance: str, location: str = "", peers: Peers = NO_PEERS) -> tuple[int, list[Request]]:
        """End the leases of an instance that restarts. Returns their number, and the requests that still wait for it.

        ``location`` and ``peers`` are those of ``Instances.add``. A KV generator stays one.
        Pass those requests to ``wait_again``. Raises UnknownInstance.
        """
        kv_generator = instance in self._scheduler.tree.tiers.kv_generators
        requests = self._scheduler.instances.remove(instance)
        self._scheduler.instances.add(instance, location, peers, kv_generator)
        waiting = [request for request in requests if request.query_id in self._turns]
        for request in requests:
            if request.query_id not in self._turns:
                self._completed(request.query_id)
        return len(requests) - len(waiting), waiting

    def reinstate(self, instance: str) -> None:
        """Let a retired instance take requests again, first those that wait for it. Raises UnknownInstance."""
        self._scheduler.instances.reinstate(instance)
        self._grant(self._scheduler.start_next(instance, self._clock()))

    def move_on(self) -> None:
        """Move requests that wait for a retired instance to another one, if there is one."""
        self.wait_again(self._scheduler.instances.take_stranded())

    def wait_again(self, requests: Iterable[Request]) -> None:
        """Admit waiting requests again, in this order, after their instance was removed."""
        for request in requests:
            try:
                grant = self._scheduler.admit(request, self._clock())
            except RagtreeError as error:
                self._turns.pop(request.query_id).set_exception(error)
                self._completed(request.query_id)
            else:
                if grant is not None:
                    self._grant([grant])
        self._handover.schedule()

    async def _turn(self, query_id: str) -> Grant:
        turn: asyncio.Future[Grant] = asyncio.get_running_loop().create_future()
        self._turns[query_id] = turn
        try:
            # Shielded: the turn may come after the task was cancelled and before the task runs again.
            grant = await asyncio.shield(turn)
        except asyncio.CancelledError:
            # If the wait or the turn was completed meanwhile, the query may have been admitted again since.
            if self._turns.get(query_id) is turn or (_has_come(turn) and not turn.result().completed):
                self.complete(query_id, kept=False)
                self.cancelled += 1
            raise
        if grant.revoked:
            raise EngineDied("the engine was lost just as the query's turn came; ask again")
        if grant.completed:
            # It was completed after the turn came and before this task ran.
            raise asyncio.CancelledError
        return grant

    def _grant(self, grants: Iterable[Grant]) -> None:
        for grant in grants:
            self._turns.pop(grant.query_id).set_result(grant)
            self._lease(grant)

    def _leased(self, grant: Grant | None) -> Grant | None:
        """The grant, if there is one, leased."""
        if grant is not None:
            self._lease(grant)
        return grant

    def _lease(self, grant: Grant) -> None:
        now = self._clock()
        self._deadlines[grant.query_id] = now + self._lease_s
        self._prefilling[grant.query_id] = now + self._first_token_s
        self._handover.prefill_started(grant.query_id)

    def _completed(self, query_id: str) -> None:
        self._deadlines.pop(query_id, None)
        self._prefilling.pop(query_id, None)
        self._handover.prefill_ended(query_id)
        for done, left in self._watched.items():
            left.discard(query_id)
            if not left and not done.done():
                done.set_result(None)


def _has_come(turn: asyncio.Future[Grant]) -> bool:
    return turn.done() and not turn.cancelled() and turn.exception() is None
