"""Leases: who holds a plan and until when, and who waits for one."""

import asyncio
from collections.abc import Callable, Collection, Iterable, Sequence

from cachectl.runtime.handover import Handover
from cachectl.scheduling.request import Request
from cachectl.scheduling.scheduler import Scheduler
from cachectl.tree.grant import Grant
from protocol.errors import EngineDied, RagtreeError
from protocol.tiers import Tier


class Leases:
    """The scheduler's turns as callers can wait for them, and grants that end when their holders are lost.

    A lease ends with ``release``, or ``lease_s`` after it was granted, or with its instance; never twice. Its first
    token is overdue after ``first_token_s``. ``expired``
    counts those whose time ran out, ``cancelled`` the waits that were given up by those who waited. Belongs to one
    event loop.
    """

    def __init__(self, scheduler: Scheduler, clock: Callable[[], float], lease_s: float, first_token_s: float) -> None:
        self._scheduler = scheduler
        self._clock = clock
        self._lease_s = lease_s
        self._first_token_s = first_token_s
        self._handover = Handover(scheduler, clock, self._give)
        self._turns: dict[str, asyncio.Future[Grant]] = {}
        self._deadlines: dict[str, float] = {}
        # When the first token of each lease that has none yet is overdue.
        self._prefilling: dict[str, float] = {}
        # What is left of the queries whose end somebody waits for.
        self._watched: dict[asyncio.Future[None], set[str]] = {}
        self.expired = 0
        self.cancelled = 0

    async def admit(self, request: Request) -> Grant:
        """Wait for a request's turn; cancelling gives it up.

        Raises what ``Scheduler.submit`` does, at once or when its instance is lost while it waits, and EngineDied when
        that happens as its turn comes.
        """
        grant = self._scheduler.admit(request, self._clock())
        if grant is None:
            self._handover.look()
            return await self._turn(request.query_id)
        self._hold(grant)
        return grant

    def take(self, request: Request, among: Collection[str]) -> Grant:
        """A lease on one of some idle instances."""
        grant = self._scheduler.admit(request, self._clock(), among)
        assert grant is not None, "an idle instance made a request wait"
        self._hold(grant)
        return grant

    def speculate(self, request: Request) -> Grant | None:
        """A lease on a prefill that may turn out not to be wanted, as ``Scheduler.speculate`` gives it."""
        grant = self._scheduler.speculative.admit(request, self._clock())
        if grant is not None:
            self._hold(grant)
        return grant

    def prepare(self, query_id: str, plan_id: str) -> Grant | None:
        """A lease on what a waiting request lacks, as ``Scheduler.prepare`` gives it."""
        grant = self._scheduler.speculative.prefetch(query_id, plan_id, self._clock())
        if grant is not None:
            self._hold(grant)
        return grant

    def prefilled(self, query_id: str, lost: Sequence[tuple[bytes, Tier]] = ()) -> None:
        """Hear of a lease's first token, as ``Scheduler.prefilled`` does, and let those start whose turn it makes.

        Raises UnknownPlan.
        """
        granted = self._scheduler.prefilled(query_id, self._clock(), lost)
        self._prefilling.pop(query_id, None)
        self._handover.over(query_id)
        for grant in granted:
            self._give(grant)

    def complete(self, query_id: str, kept: bool, lost: Sequence[tuple[bytes, Tier]] = ()) -> None:
        """End a lease or a wait, as ``Scheduler.complete`` does, and give the free cache away. Raises UnknownPlan."""
        granted = self._scheduler.complete(query_id, self._clock(), kept, lost)
        self._deadlines.pop(query_id, None)
        self._prefilling.pop(query_id, None)
        turn = self._turns.pop(query_id, None)
        if turn is not None:
            turn.cancel()
        self._ended(query_id)
        for grant in granted:
            self._give(grant)

    def expire(self) -> None:
        """Release what was leased too long ago: its holder is gone, or it would have completed.

        A lease whose first token is overdue goes on, and keeps nobody waiting any more: then a holder that is lost
        does not keep an instance idle for as long as a lease.
        """
        now = self._clock()
        for query_id in [query_id for query_id, deadline in self._deadlines.items() if deadline <= now]:
            self.complete(query_id, kept=False)
            self.expired += 1
        for query_id in [query_id for query_id, deadline in self._prefilling.items() if deadline <= now]:
            del self._prefilling[query_id]
            self._handover.over(query_id)
            for grant in self._scheduler.stalled(query_id, now):
                self._give(grant)

    def end_of(self, queries: Iterable[str]) -> asyncio.Future[None]:
        """Done when queries that hold a lease now or wait for one have ended, each in whatever way."""
        left = set(queries)
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if left:
            self._watched[done] = left
            done.add_done_callback(self._watched.pop)
        else:
            done.set_result(None)
        return done

    def restart(self, instance: str, isolated: bool = False) -> tuple[int, list[Request]]:
        """Hear that an instance begins anew: how many leases ended there, and the requests that still wait.

        They are to be passed to ``wait_again``. Raises UnknownInstance.
        """
        requests = self._scheduler.lifecycle.remove(instance)
        self._scheduler.lifecycle.add(instance, isolated)
        waiting = [request for request in requests if request.query_id in self._turns]
        for request in requests:
            if request.query_id not in self._turns:
                self._deadlines.pop(request.query_id, None)
                self._prefilling.pop(request.query_id, None)
                self._ended(request.query_id)
        return len(requests) - len(waiting), waiting

    def reinstate(self, instance: str) -> None:
        """Let a retired instance take requests again, first those that wait for it. Raises UnknownInstance."""
        for grant in self._scheduler.lifecycle.reinstate(instance, self._clock()):
            self._give(grant)

    def move_on(self) -> None:
        """Let requests that wait for a retired instance wait for another, as soon as there is one."""
        self.wait_again(self._scheduler.lifecycle.take_stranded())

    def wait_again(self, requests: Iterable[Request]) -> None:
        """Let requests wait that an instance took with it, in this order."""
        for request in requests:
            try:
                grant = self._scheduler.admit(request, self._clock())
            except RagtreeError as error:
                self._turns.pop(request.query_id).set_exception(error)
                self._ended(request.query_id)
            else:
                if grant is not None:
                    self._give(grant)
        self._handover.look()

    def check_integrity(self) -> None:
        """Assert that turns are what waits, and deadlines are of leases."""
        self._handover.check_integrity(set(self._prefilling))
        assert self._prefilling.keys() <= self._deadlines.keys() <= self._scheduler.tree.grants.open.keys()
        assert len(self._turns) == self._scheduler.instances.queued
        assert not any(turn.done() for turn in self._turns.values())
        assert all(done.done() or left for done, left in self._watched.items()), "somebody waits for nothing"

    async def _turn(self, query_id: str) -> Grant:
        turn: asyncio.Future[Grant] = asyncio.get_running_loop().create_future()
        self._turns[query_id] = turn
        try:
            # Shielded, so that a turn which comes between the cancelling and this task's hearing of it can be given.
            grant = await asyncio.shield(turn)
        except asyncio.CancelledError:
            # A wait or a turn that was ended from outside is released already, and the query may have come again since.
            if self._turns.get(query_id) is turn or (_has_come(turn) and not turn.result().completed):
                self.complete(query_id, kept=False)
                self.cancelled += 1
            raise
        if grant.revoked:
            raise EngineDied("the engine went away as the query's turn came")
        if grant.completed:
            # Completed between its turn and this task's hearing of it.
            raise asyncio.CancelledError
        return grant

    def _give(self, grant: Grant) -> None:
        self._turns.pop(grant.query_id).set_result(grant)
        self._hold(grant)

    def _hold(self, grant: Grant) -> None:
        now = self._clock()
        self._deadlines[grant.query_id] = now + self._lease_s
        self._prefilling[grant.query_id] = now + self._first_token_s
        self._handover.begun(grant.query_id)

    def _ended(self, query_id: str) -> None:
        self._handover.over(query_id)
        for done, left in self._watched.items():
            left.discard(query_id)
            if not left and not done.done():
                done.set_result(None)


def _has_come(turn: asyncio.Future[Grant]) -> bool:
    return turn.done() and not turn.cancelled() and turn.exception() is None
