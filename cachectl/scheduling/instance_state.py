"""What the scheduler has in hand: requests, and for each instance the line of those that it works on and that wait."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from cachectl.scheduling.queue import CacheAwareQueue
from cachectl.tree.grant import PathDocument
from cachectl.tree.node import path_keys

if TYPE_CHECKING:
    from cachectl.tree.grant import Grant
    from protocol.generation import StepBudget


class Request(NamedTuple):
    """A request for a prefill: documents in prompt order, and ``question_tokens`` behind them.

    The first ``pinned`` documents are pinned: the system prompt. ``avoid`` are instances that it is not to be given.
    """

    query_id: str
    namespace: str
    documents: tuple[PathDocument, ...]
    question_tokens: int
    pinned: int = 0
    avoid: tuple[str, ...] = ()


class ScheduledRequest:
    """A request in the scheduler's hands: ``tokens`` its whole prompt has, ``seconds`` its prefill may take.

    ``step_share`` are the tokens of an engine's step that its prefill takes, while it does. It is ``speculative`` until
    somebody confirms that it is wanted. What ``prepares`` the turn of a request that waits, and is ``prepared_by`` on
    the request's side, is speculative too; it has no answer, so no place.
    """

    __slots__ = (
        "contents",
        "grant",
        "instance",
        "keys",
        "prepared_by",
        "prepares",
        "request",
        "seconds",
        "speculative",
        "step_share",
        "tokens",
    )

    def __init__(self, request: Request) -> None:
        self.request = request
        self.contents = [document.content for document in request.documents]
        self.keys = path_keys(request.namespace, self.contents)
        self.tokens = request.question_tokens + sum([document.tokens for document in request.documents])
        self.instance = ""
        self.seconds = 0.0
        self.step_share = 0
        self.speculative = False
        self.prepares = False
        self.prepared_by = ""
        self.grant: Grant | None = None


class InstanceState:
    """What an instance works on, at most ``max_running`` requests, and what waits for it.

    Where the engine's ``step`` is known, no more prefills run at once than fit into one. ``step_tokens`` are those of
    it that requests take, ``backlog_s`` the seconds that they will. Speculations come on top, oldest first: whatever
    room they take is there for requests all the same. What is ``due`` has left the step just before its first token.
    """

    __slots__ = ("_max_running", "_step", "backlog_s", "due", "queue", "running", "speculations", "step_tokens")

    def __init__(self, queue: CacheAwareQueue, max_running: int, step: StepBudget | None) -> None:
        self.queue = queue
        self._max_running = max_running
        self._step = step
        self.running = 0
        self.step_tokens = 0
        self.speculations: dict[str, ScheduledRequest] = {}
        self.backlog_s = 0.0
        self.due: ScheduledRequest | None = None

    def step_taken(self, besides: str | None = None) -> int:
        """Tokens of its step that anything takes, ``besides`` one speculation."""
        shares = [work.step_share for query_id, work in self.speculations.items() if query_id != besides]
        return self.step_tokens + sum(shares)

    def slots_taken(self, besides: str | None = None) -> int:
        """Places that anything takes, ``besides`` one speculation."""
        guesses = [
            query_id for query_id, work in self.speculations.items() if query_id != besides and not work.prepares
        ]
        return self.running + len(guesses)

    def has_slot(self) -> bool:
        """Whether fewer requests run than may."""
        return self.running < self._max_running

    def fits(self, step_share: int) -> bool:
        """Whether the step has room for a request that takes so many of its tokens; alone it takes what there is."""
        return self._step is None or not self.step_tokens or self.step_tokens + step_share <= self._step.tokens

    def fits_beside_all(self, step_share: int) -> bool:
        """Whether a speculation fits into the step beside all that is there; alone it takes what there is."""
        taken = self.step_taken()
        return self._step is None or not taken or taken + step_share <= self._step.tokens

    def has_room(self, besides: str | None = None) -> bool:
        """Whether a speculation could start, ``besides`` one that would end for it."""
        if self.queue or self.slots_taken(besides) >= self._max_running:
            return False
        return self._step is None or self.step_taken(besides) < self._step.tokens

    def prompts_part_is_free(self) -> bool:
        """Whether a whole prompt's part of the step is free, and nothing is prepared."""
        if any(work.prepares for work in self.speculations.values()):
            return False
        return self._step is None or self.step_taken() + self._step.prompt_tokens <= self._step.tokens

    def make_way(self) -> list[str]:
        """Let go of speculations, the latest first, that keep requests from a place or from their part of a step."""
        ended = []
        for query_id, work in reversed(list(self.speculations.items())):
            crowded = not work.prepares and self.slots_taken() > self._max_running
            if crowded or (self._step is not None and work.step_share and self.step_taken() > self._step.tokens):
                self.give_way(work)
                ended.append(query_id)
        return ended

    def give_way(self, work: ScheduledRequest) -> None:
        """Let go of a speculation."""
        del self.speculations[work.request.query_id]
        work.step_share = 0

    def leave_step(self, work: ScheduledRequest) -> None:
        """Give free what a request's prefill took of its engine's steps; once is enough."""
        if not work.speculative:
            self.step_tokens -= work.step_share
        work.step_share = 0
        if self.due is work:
            self.due = None

    def hand_over(self, work: ScheduledRequest) -> None:
        """Give free what a request takes of the steps just before its first token, to one other at a time."""
        self.leave_step(work)
        self.due = work
