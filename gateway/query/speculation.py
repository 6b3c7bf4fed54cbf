"""Generating on provisional documents while the search goes on, out of everybody's sight until they are confirmed."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Literal

from gateway.deadline import Deadline
from gateway.metrics.gateway_metrics import GatewayMetrics
from gateway.query.guess import Guess
from gateway.query.lease import Lease, Releases
from gateway.query.query import Query
from gateway.query.speculation_start import Settling
from gateway.query.tracing import QueryTrace
from gateway.query.transcript import Transcript
from gateway.wire.reply import SpeculationTimings
from protocol.parts import Parts
from protocol.plans import AdmissionRequest, DocumentOrder, SpeculationDecision
from protocol.prompts import Prompt
from protocol.retrieval import CandidateSet


class Speculation:
    """One query's speculation: at most one guess at a time, on what its search has found so far.

    A context manager: what still runs at the end of its block is ended, with the outcome that a ``Lease`` would have.
    ``lay_out`` makes the prompt; the search began at ``searched_at``, in seconds since the epoch. ``settling`` learns
    from this search when others are worth beginning on.
    """

    def __init__(
        self,
        transcript: Transcript,
        parts: Parts,
        releases: Releases,
        deadline: Deadline,
        first_step_timeout_s: float,
        lay_out: Callable[[Query, CandidateSet], Prompt],
        metrics: GatewayMetrics,
        settling: Settling,
        searched_at: float,
        trace: QueryTrace,
    ) -> None:
        self._transcript = transcript
        self._query = transcript.query
        self._parts = parts
        self._releases = releases
        self._deadline = deadline
        self._first_step_timeout_s = first_step_timeout_s
        self._lay_out = lay_out
        self._metrics = metrics
        self._settling = settling
        self._searched_at = searched_at
        self._trace = trace
        search, ranked = self._query.search, self._query.order is DocumentOrder.RETRIEVAL
        self._kind = search.tenant, search.collection, search.top_k, search.filters is None, ranked
        # The first stage, and the one since which the documents are the newest.
        self._first: CandidateSet | None = None
        self._since = 1
        self._guess: Guess | None = None
        self._asked = self._begun = self._wasted_tokens = 0
        self._given_up: list[Guess] = []
        self._newest: tuple[CandidateSet, Sequence[str]] | None = None
        # The end of the guess that was let go last, and what comes after it.
        self._ending: asyncio.Task[None] | None = None
        self._beginning_anew: asyncio.Task[None] | None = None
        self._confirmed = False

    def __enter__(self) -> "Speculation":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._beginning_anew is not None:
            self._beginning_anew.cancel()
        if self._guess is not None:
            self._guess.lease.__exit__(kind, error, trace)
            self._ended("confirmed" if self._confirmed else "abandoned")
        self._metrics.wasted(self._wasted_tokens)

    def timings(self, prompt: Prompt, retrieval_ms: float) -> SpeculationTimings | None:
        """What has come of it for a query that got this prompt after such a search; None where nothing was begun."""
        if not self._begun:
            return None
        uses = [guess.use(prompt) for guess in self._given_up]
        for guess, use in zip(self._given_up, uses, strict=True):
            # Of what was ended before it computed anything, nothing could be of use or stand in anybody's way.
            if guess.lease.prefill is not None:
                self._settling.used(use.share)
        overlapped_ms = sum(
            use.share * max(0.0, min(guess.ended_ms, retrieval_ms) - guess.began_ms)
            for guess, use in zip(self._given_up, uses, strict=True)
        )
        began_ms = None
        if self._guess is not None:
            began_ms = self._guess.began_ms
            overlapped_ms += max(0.0, retrieval_ms - began_ms)
        outcome: Literal["confirmed", "dropped"] = "dropped" if self._guess is None else "confirmed"
        self._wasted_tokens = sum(use.wasted for use in uses)
        return SpeculationTimings(outcome, self._begun, began_ms, self._wasted_tokens, overlapped_ms)

    async def consider(self, found: CandidateSet) -> None:
        """Have the controller decide on what a stage of the search has found, and do what it says."""
        documents = [chunk.content_hash for chunk in found.docs]
        if self._query.order is not DocumentOrder.RETRIEVAL:
            # The prompt is the same however they were ranked, or the guess's order is as good.
            documents.sort()
        if self._newest is None or self._newest[1] != documents:
            self._since = found.stage
        self._newest = found, documents
        if found.final:
            self._learn(found)
            await self._conclude(documents)
            return
        self._first = self._first or found
        if self._beginning_anew is not None:
            if not self._beginning_anew.done():
                return
            began_anew, self._beginning_anew = self._beginning_anew, None
            began_anew.result()
        await self._follow(found, documents)

    def confirmed(self) -> Guess | None:
        """What runs on the final documents, once they were considered; its steps may leave."""
        return self._guess if self._confirmed else None

    async def _follow(self, found: CandidateSet, documents: Sequence[str]) -> None:
        """Start, keep or drop a guess for the newest documents."""
        if self._runs_on(documents) or (self._guess is None and not self._worth_beginning(found)):
            return
        controller = self._parts.controller
        decision = await self._deadline.wait(controller.on_candidates(self._query.query_id, documents, final=False))
        if decision is SpeculationDecision.KEEP:
            return
        self._let_go("wrong")
        if decision is not SpeculationDecision.START or not self._worth_beginning(found):
            return
        if self._ending is None or self._ending.done():
            await self._start(found, documents)
        else:
            self._beginning_anew = self._releases.start(self._begin_anew(self._ending))

    async def _begin_anew(self, ending: asyncio.Task[None]) -> None:
        """Start on the newest documents once the engine has let go of a guess, after its iteration in hand.

        Nothing else could begin there before. What was computed by then is known, and the next plan finds it.
        """
        await asyncio.wait({ending})
        assert self._newest is not None
        found, documents = self._newest
        if self._worth_beginning(found):
            await self._start(found, documents)

    async def _conclude(self, documents: Sequence[str]) -> None:
        """Have the guess confirmed, if there is one on the final documents; otherwise end it."""
        if self._beginning_anew is not None:
            self._beginning_anew.cancel()
            with suppress(asyncio.CancelledError):
                await self._beginning_anew
        if self._runs_on(documents):
            on_candidates = self._parts.controller.on_candidates
            decision = await self._deadline.wait(on_candidates(self._query.query_id, documents, final=True))
            # It may have broken meanwhile.
            self._confirmed = decision is SpeculationDecision.KEEP and self._runs_on(documents)
        if self._confirmed and self._guess is not None:
            self._transcript.timeline.phase("speculation", self._guess.began_ms, "confirmed")
        if not self._confirmed:
            # Admission ends it over there, and then finds what it has computed.
            self._let_go("wrong")
            if self._ending is not None:
                await self._deadline.wait(asyncio.shield(self._ending))

    def _runs_on(self, documents: Sequence[str]) -> bool:
        """Whether a guess goes on that rests on these documents."""
        if self._guess is not None and self._guess.over:
            self._let_go("gave_way")
        return self._guess is not None and self._guess.documents == documents

    def _learn(self, found: CandidateSet) -> None:
        # A search in one stage leaves nothing to decide. In the first stage's time is that of embedding the question.
        if self._first is not None:
            stage_ms = (found.elapsed_ms - self._first.elapsed_ms) / (found.of - self._first.stage)
            self._settling.searched(self._kind, self._since / found.of, stage_ms)

    def _worth_beginning(self, found: CandidateSet) -> bool:
        return self._settling.worth_beginning(self._kind, found.stage, found.of, self._since)

    async def _start(self, found: CandidateSet, documents: Sequence[str]) -> None:
        self._asked += 1
        query = self._query
        prompt = self._lay_out(query, found)
        asked = AdmissionRequest(
            f"{query.query_id}~{self._asked}", query.namespace, prompt, self._searched_at, query.order
        )
        lease = Lease(asked.query_id, self._parts.controller, self._releases)
        plan = None
        try:
            leasing = lease.admission(self._parts.controller.speculate(query.query_id, documents, asked))
            plan = await self._deadline.wait(leasing)
        finally:
            if plan is None:
                lease.__exit__(None, None, None)
        if plan is not None:
            stream = self._parts.generator.stream(plan, query.sampling)
            steps = lease.steps(stream, self._deadline, self._first_step_timeout_s, self._trace.chat(plan))
            self._begun += 1
            self._guess = Guess(
                plan, documents, lease, steps, self._parts.generator.end, self._transcript.timeline.now_ms
            )

    def _let_go(self, why: Literal["wrong", "gave_way"]) -> None:
        guess, self._guess = self._guess, None
        if guess is not None:
            guess.lease.__exit__(None, None, None)
            self._ending = guess.lease.released
            assert self._ending is not None
            wrong_at_ms = self._transcript.elapsed_s * 1000 if why == "wrong" else None
            self._ending.add_done_callback(partial(self._let_gone, guess, wrong_at_ms))
            self._given_up.append(guess)
            self._transcript.timeline.phase("speculation", guess.began_ms, why)
            self._ended(why)

    def _ended(self, outcome: str) -> None:
        self._metrics.speculated(outcome)
        self._trace.speculated(outcome)

    def _let_gone(self, guess: Guess, wrong_at_ms: float | None, _: asyncio.Task[None]) -> None:
        now_ms = self._transcript.elapsed_s * 1000
        guess.ended_ms = now_ms
        if wrong_at_ms is not None:
            self._settling.ended(now_ms - wrong_at_ms)
