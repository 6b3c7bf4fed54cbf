"""Dynamic speculative pipelining: generate on provisional documents, or wait for better ones.

RAGCache, section 5.3, Algorithm 2. A search that goes in stages often has its final documents long before it ends, and
a generation started on them then overlaps with the stages that only confirm them. What the answers ask of the caller:

    START   end what the query's speculation runs on, if anything; start one on these documents
    KEEP    let the running one go on; if the documents are final, it is confirmed and its tokens may leave
    DROP    end the running one and start none
    WAIT    nothing runs, and nothing starts

An ended generation finishes its iteration first. START is always speculative: final documents that are not confirmed
are no guess, so they get DROP or WAIT, and the query then goes through admission like any other.
"""

from collections.abc import Sequence
from typing import NamedTuple

from cachectl.scheduling.scheduler import Scheduler
from protocol.plans import SpeculationDecision


def decide(candidates: Sequence[str], running: Sequence[str] | None, room: bool, final: bool) -> SpeculationDecision:
    """The decision on a query's ``candidates`` after one stage, given what its speculation is ``running`` on, if any.

    Both are content keys in prompt order: the same documents in another order are another prompt. No candidates are
    nothing found so far, which is never speculated on.

    ``room`` says whether the engine's largest useful prefill batch has room for another, the query's own speculation
    aside, for START ends it and so frees its place. A speculation then fills room that would stay empty; without, it
    would delay others. Under the paper's assumptions this rule minimises the expected time to first token (Theorem
    5.1).
    """
    # Sequences of different types are never equal, even with equal items.
    if running is not None and tuple(running) == tuple(candidates):
        return SpeculationDecision.KEEP
    if candidates and not final and room:
        return SpeculationDecision.START
    return SpeculationDecision.WAIT if running is None else SpeculationDecision.DROP


class _Running(NamedTuple):
    plan_id: str
    documents: tuple[str, ...]


class Speculations:
    """What each query's speculation runs on, at most one plan a query; ``scheduler`` says which of them go on."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._running: dict[str, _Running] = {}

    def hear(self, query_id: str, documents: Sequence[str], final: bool) -> SpeculationDecision:
        """Decide about a query's documents after one stage, and do what the decision means for the plan it has."""
        running = self._going_on(query_id)
        plan_id = running.plan_id if running is not None else None
        room = self._scheduler.speculative.has_room(besides=plan_id)
        decision = decide(documents, running.documents if running is not None else None, room, final)
        if running is not None:
            if decision is not SpeculationDecision.KEEP:
                self.end(query_id)
            elif final:
                self._scheduler.speculative.confirm(running.plan_id)
                del self._running[query_id]
        return decision

    def began(self, query_id: str, plan_id: str, documents: Sequence[str]) -> None:
        """Note the plan that a query speculates with from now on, which ends the one that it has."""
        self.end(query_id)
        self._running[query_id] = _Running(plan_id, tuple(documents))

    def end(self, query_id: str) -> None:
        """Count no more on a query's speculation, if it has one; its plan is completed by whoever holds it."""
        running = self._going_on(query_id)
        if running is not None:
            self._scheduler.speculative.withdraw(running.plan_id)
            del self._running[query_id]

    def sweep(self) -> None:
        """Forget those that gave way, or whose plans have ended."""
        for query_id in list(self._running):
            self._going_on(query_id)

    def _going_on(self, query_id: str) -> _Running | None:
        running = self._running.get(query_id)
        if running is not None and not self._scheduler.speculative.runs(running.plan_id):
            del self._running[query_id]
            return None
        return running
