"""One controller of several, and the time of its decisions on its part of a stream of requests."""

from __future__ import annotations

import time
from collections import deque
from itertools import cycle
from typing import TYPE_CHECKING

import msgspec

from cachectl.nodes.node import PathDocument
from cachectl.scheduling.request import Request
from cachectl.sharding.controller_shard import shard_of
from ragtree_lab.simulation.simulator import system_prompt

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from cachectl.scheduling.scheduler import Scheduler
    from cachectl.sharding.controller_shard import ControllerShard
    from cachectl.tree.grant import Grant
    from ragtree_lab.workloads.workload import TraceRequest


class Served(msgspec.Struct, frozen=True):
    """How a shard served its ``requests``: in ``seconds`` of processor time, and in ``wall_s`` on the clock.

    Of the ``tokens`` of all documents that plans began with, ``found_tokens`` were in a tier.
    """

    requests: int
    seconds: float
    wall_s: float
    tokens: int
    found_tokens: int


class Shard:
    """Decides on requests: admits each, and completes the oldest one beyond ``in_flight`` that run or wait."""

    def __init__(self, scheduler: Scheduler, in_flight: int) -> None:
        self._scheduler = scheduler
        self._in_flight = in_flight
        self._running: deque[str] = deque()

    def warm_up(self, traced: Iterable[TraceRequest]) -> None:
        """Give requests to the instances in turn, which needs no choice among them."""
        turns = cycle([(instance,) for instance in self._scheduler.instances.states])
        for each, among in zip(traced, turns, strict=False):
            self._decide(_request(each), each.arrival_s, [], among)

    def serve(self, traced: Iterable[TraceRequest]) -> Served:
        """Decide on all requests. What still runs at the end goes on with the next call."""
        requests = [(_request(each), each.arrival_s) for each in traced]
        grants: list[Grant] = []
        wall, processor = time.perf_counter(), time.thread_time()
        for request, arrival_s in requests:
            self._decide(request, arrival_s, grants)
        seconds, wall_s = time.thread_time() - processor, time.perf_counter() - wall
        steps = [step for grant in grants for step in grant.documents]
        found = sum(step.tokens for step in steps if step.loaded_from is not None)
        return Served(len(requests), seconds, wall_s, sum(step.tokens for step in steps), found)

    def _decide(self, request: Request, now: float, grants: list[Grant], among: Collection[str] | None = None) -> None:
        grant = self._scheduler.admit(request, now, among)
        if grant is not None:
            self._began((grant,), grants)
        while self._running and len(self._scheduler.book.requests) > self._in_flight:
            query_id = self._running.popleft()
            self._began(self._scheduler.prefilled(query_id, now), grants)
            self._began(self._scheduler.complete(query_id, now, kept=True, unwritten=()), grants)

    def _began(self, begun: Sequence[Grant], grants: list[Grant]) -> None:
        for grant in begun:
            self._running.append(grant.query_id)
            grants.append(grant)


def together(served: Sequence[Served]) -> Served:
    """The sums of all figures."""
    return Served(*(sum(getattr(each, name) for each in served) for name in Served.__struct_fields__))


def part_of(requests: Iterable[TraceRequest], shard: ControllerShard) -> list[TraceRequest]:
    """The requests that a shard owns: those with its first documents, behind the system prompt."""
    return [each for each in requests if shard_of(each.documents[0].id, shard.count) == shard.number]


def _request(traced: TraceRequest) -> Request:
    system = system_prompt(traced)
    path = (*system, *(PathDocument(*document) for document in traced.documents))
    # No two requests arrive at the same time.
    return Request(str(traced.arrival_s), traced.system_id, path, traced.question_tokens, pinned=len(system))
