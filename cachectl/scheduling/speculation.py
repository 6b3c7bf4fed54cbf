"""Dynamic speculative pipelining: generate on provisional documents, or wait for better ones.

RAGCache, section 5.3, Algorithm 2. A search in stages often has its final documents long before it ends. A generation
that starts on them overlaps with the stages that only confirm them. The decisions tell the caller what to do:

    START   end the query's speculation, if it has one, and start one on these documents
    KEEP    let the running speculation go on; if the documents are final, it is confirmed and its tokens may leave
    DROP    end the running speculation and start none
    WAIT    nothing runs, and nothing starts

An ended generation finishes its current iteration first. Final documents that no speculation runs on are no guess:
they get DROP or WAIT, and the query is admitted like any other.
"""

from collections.abc import Sequence
from typing import NamedTuple

from cachectl.scheduling.speculative_slots import SpeculativeSlots
from protocol.plans import SpeculationDecision


def decide(candidates: Sequence[str], running: Sequence[str] | None, room: bool, final: bool) -> SpeculationDecision:
    """The decision about a query's ``candidates`` after one stage; ``running`` is what its speculation runs on, if any.

    Both are content keys in prompt order: the same documents in another order are another prompt. Empty candidates are
    never speculated on.

    ``room`` says whether the engine's largest useful prefill batch has room for one more, the query's own speculation
    aside, as START ends that one. A speculation then fills room that would stay empty, and otherwise it would delay
    requests. Under the paper's assumptions this rule minimises the expected time to first token (Theorem 5.1).
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
    """The plan that each query speculates with, at most one; ``slots`` knows which of them go on."""

    def __init__(self, slots: SpeculativeSlots) -> None:
        self._slots = slots
        self._running: dict[str, _Running] = {}

    def decide(self, query_id: str, documents: Sequence[str], final: bool) -> SpeculationDecision:
        """Decide about a query's documents after one stage, and end or confirm its speculation accordingly."""
        running = self._going_on(query_id)
        plan_id = running.plan_id if running is not None else None
        room = self._slots.has_room(besides=plan_id)
        decision = decide(documents, running.documents if running is not None else None, room, final)
        if running is not None:
            if decision is not SpeculationDecision.KEEP:
                self.end(query_id)
            elif final:
                self._slots.confirm(running.plan_id)
                del self._running[query_id]
        return decision

    def started(self, query_id: str, plan_id: str, documents: Sequence[str]) -> None:
        """Register a query's new speculation, which ends the one that it has."""
        self.end(query_id)
        self._running[query_id] = _Running(plan_id, tuple(documents))

    def end(self, query_id: str) -> None:
        """End a query's speculation, if it has one. Its lease is completed by its holder."""
        running = self._going_on(query_id)
        if running is not None:
            self._slots.withdraw(running.plan_id)
            del self._running[query_id]

    def sweep(self) -> None:
        """Forget speculations that gave way, or whose plans have ended."""
        for query_id in list(self._running):
            self._going_on(query_id)

    def _going_on(self, query_id: str) -> _Running | None:
        running = self._running.get(query_id)
        if running is not None and not self._slots.runs(running.plan_id):
            del self._running[query_id]
            return None
        return running
