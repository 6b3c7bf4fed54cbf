"""Generating on provisional documents while the search goes on."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from operator import attrgetter
from typing import Literal

from gateway.query.context import QueryContext
from gateway.query.guess import Guess
from gateway.query.speculation_start import SpeculationStart
from gateway.tasks import Ends
from gateway.wire.reply import SpeculationTimings
from protocol.errors import EngineDied, EngineFailed
from protocol.plans import DocumentOrder, PrefillPlan, SpeculationDecision
from protocol.prompts import Prompt
from protocol.retrieval import CandidateSet

_KIND = attrgetter("tenant", "collection", "search", "rerank", "mode", "top_k")
"""What tells kinds of searches apart, besides filters and the order of documents."""


class Speculation(Ends):
    """One query's speculation: at most one guess at a time, on the documents that its search has found so far.

    ``start`` decides which stages are worth a guess, and learns from this search. As a context manager, a speculation
    closes a guess that still runs at the end of its block.
    """

    def __init__(self, context: QueryContext, start: SpeculationStart) -> None:
        self._context = context
        self._start = start
        search = context.query.search
        self._ranked = context.query.order is DocumentOrder.RETRIEVAL
        self._kind = (*_KIND(search), search.filters is None, self._ranked)
        self._first_stage: CandidateSet | None = None
        # The newest documents, and the stage since which they have not changed.
        self._newest: tuple[CandidateSet, Sequence[str]] | None = None
        self._since = 1
        self._attempts = 0
        self._guess: Guess | None = None
        self._confirmed = False
        self._dropped: list[Guess] = []
        # Starts a guess once that which was dropped last is released.
        self._restart: asyncio.Task[None] | None = None

    def end(self, error: BaseException | None) -> None:
        """Close a guess that still runs."""
        if self._restart is not None:
            self._restart.cancel()
        if self._guess is not None:
            self._guess.lease.end(error)
            self._count("confirmed" if self._confirmed else "abandoned")

    async def consider(self, found: CandidateSet) -> None:
        """Ask the controller about a stage of the search, and start, keep, drop or confirm a guess accordingly."""
        documents = [chunk.content_hash for chunk in found.docs]
        if not self._ranked:
            # The prompt does not depend on their rank, or the guess's order is as good.
            documents.sort()
        # A guess on the same documents without these facts, or with others, is another prompt.
        documents += [path.text for path in self._context.query.prompt_paths(found)]
        if self._newest is None or self._newest[1] != documents:
            self._since = found.stage
        self._newest = found, documents
        if found.final:
            self._learn_search(found)
            await self._conclude(documents)
            return
        self._first_stage = self._first_stage or found
        if self._restart is not None:
            if not self._restart.done():
                return
            restart, self._restart = self._restart, None
            restart.result()
        await self._follow(found, documents)

    def confirmed(self) -> Guess | None:
        """The guess on the final documents, once ``consider`` has confirmed it. Its steps may leave."""
        return self._guess if self._confirmed else None

    def timings(self, prompt: Prompt, found_ms: float) -> SpeculationTimings | None:
        """Result of the speculation for a query with this prompt; None if no guess was started.

        The search ended ``found_ms`` after the query's arrival.
        """
        generations = len(self._dropped) + (self._guess is not None)
        if not generations:
            return None
        uses = [(guess, guess.use(prompt)) for guess in self._dropped]
        overlapped_ms = sum(use.share * max(0.0, min(guess.ended_ms, found_ms) - guess.began_ms) for guess, use in uses)
        began_ms: float | None = None
        outcome: Literal["confirmed", "dropped"] = "dropped"
        if self._guess is not None:
            outcome, began_ms = "confirmed", self._guess.began_ms
            overlapped_ms += max(0.0, found_ms - began_ms)
        return SpeculationTimings(outcome, generations, began_ms, sum(use.wasted for _, use in uses), overlapped_ms)

    def learn(self, prompt: Prompt) -> None:
        """Train ``start`` on how useful the dropped guesses were to the final prompt, and count the wasted tokens."""
        for guess in self._dropped:
            # A guess that computed nothing teaches nothing.
            if guess.lease.prefill is not None:
                use = guess.use(prompt)
                self._start.record_use(use.share)
                self._context.metrics.wasted.inc(use.wasted)

    async def _follow(self, found: CandidateSet, documents: Sequence[str]) -> None:
        """Start, keep or drop a guess for the newest documents."""
        if self._runs_on(documents) or (self._guess is None and not self._worth_starting(found)):
            return
        decision = await self._decision(documents, final=False)
        if decision is SpeculationDecision.KEEP:
            return
        self._drop("wrong")
        if decision is not SpeculationDecision.START or not self._worth_starting(found):
            return
        if self._ending is None or self._ending.done():
            await self._start_guess(found, documents)
        else:
            self._restart = self._context.tasks.start(self._start_after(self._ending))

    async def _start_after(self, ending: asyncio.Task[None]) -> None:
        """Start on the newest documents once the engine has released the dropped guess, after its current iteration.

        Nothing can start there sooner. By then the computed nodes are known, so the next plan finds them.
        """
        await asyncio.wait({ending})
        assert self._newest is not None
        found, documents = self._newest
        if self._worth_starting(found):
            await self._start_guess(found, documents)

    async def _conclude(self, documents: Sequence[str]) -> None:
        """Confirm the guess if it rests on the final documents; drop it otherwise."""
        if self._restart is not None:
            self._restart.cancel()
            with suppress(asyncio.CancelledError):
                await self._restart
        if self._runs_on(documents):
            decision = await self._decision(documents, final=True)
            # The guess may have failed during the call.
            self._confirmed = decision is SpeculationDecision.KEEP and self._runs_on(documents)
        if self._confirmed and self._guess is not None:
            self._context.timeline.phase("speculation", self._guess.began_ms, "confirmed")
        if not self._confirmed:
            # The query's admission ends the guess in the controller, and finds what it computed.
            self._drop("wrong")
            if self._ending is not None:
                await self._context.deadline.wait(asyncio.shield(self._ending))

    @property
    def _ending(self) -> asyncio.Task[None] | None:
        """The release of the guess that was dropped last."""
        return self._dropped[-1].lease.released if self._dropped else None

    async def _decision(self, documents: Sequence[str], final: bool) -> SpeculationDecision:
        context = self._context
        deciding = context.parts.controller.on_candidates(context.query.query_id, documents, final=final)
        return await context.deadline.wait(deciding)

    def _runs_on(self, documents: Sequence[str]) -> bool:
        """Whether a guess on these documents is still running."""
        if self._guess is not None and self._guess.over:
            self._drop("gave_way")
        return self._guess is not None and self._guess.documents == documents

    def _worth_starting(self, found: CandidateSet) -> bool:
        return self._start.worth_starting(self._kind, found.stage, found.of, self._since)

    async def _start_guess(self, found: CandidateSet, documents: Sequence[str]) -> None:
        context = self._context
        self._attempts += 1
        query_id = context.query.query_id
        plan_id = f"{query_id}~{self._attempts}"
        request = context.admission_request(plan_id, await context.lay_out(found), found)
        lease = context.lease(plan_id)
        plan: PrefillPlan | None = None
        try:
            speculate = context.parts.controller.speculate(query_id, documents, request)
            plan = await context.deadline.wait(lease.admit(speculate))
        finally:
            if plan is None:
                lease.end()
        if plan is not None:
            self._guess = Guess(context, request, plan, documents, lease)

    def _drop(self, why: Literal["wrong", "gave_way"]) -> None:
        guess, self._guess = self._guess, None
        if guess is not None:
            ending = guess.lease.end()
            wrong_at_ms = self._context.timeline.now_ms() if why == "wrong" else None
            ending.add_done_callback(partial(self._record_ending, guess, wrong_at_ms))
            self._dropped.append(guess)
            self._context.timeline.phase("speculation", guess.began_ms, why)
            self._count(why)
            # The query's own prompt has the same question, and most of the same documents.
            if isinstance(guess.error, EngineDied):
                self._context.losses.note(guess.error)
            elif isinstance(guess.error, EngineFailed):
                raise guess.error

    def _record_ending(self, guess: Guess, wrong_at_ms: float | None, _: asyncio.Task[None]) -> None:
        guess.ended_ms = self._context.timeline.now_ms()
        if wrong_at_ms is not None:
            self._start.record_ending(guess.ended_ms - wrong_at_ms)

    def _learn_search(self, found: CandidateSet) -> None:
        # A search in one stage leaves nothing to decide. The first stage's time includes embedding the question.
        if self._first_stage is not None:
            stage_ms = (found.elapsed_ms - self._first_stage.elapsed_ms) / (found.of - self._first_stage.stage)
            self._start.record_search(self._kind, self._since / found.of, stage_ms)

    def _count(self, outcome: str) -> None:
        self._context.metrics.speculation.labels(outcome).inc()
        self._context.trace.speculated(outcome)
