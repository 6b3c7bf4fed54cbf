"""The core of the product: search, speculate, lay out, admit, stream, complete."""

import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager

from gateway.deadline import Deadline
from gateway.metrics.gateway_metrics import GatewayMetrics
from gateway.query.generation import Generation
from gateway.query.lease import Lease, Releases
from gateway.query.query import Query
from gateway.query.speculation import Speculation
from gateway.query.speculation_start import Settling
from gateway.query.tracing import QueryTrace, Tracing
from gateway.query.transcript import Transcript
from gateway.settings import GatewaySettings
from gateway.stores.query_log import QueryLog
from gateway.stores.recent_documents import RecentDocuments
from gateway.wire.events import Event
from protocol.errors import InternalError, NoDocuments, QuestionTooLong, UnknownCollection
from protocol.parts import Parts
from protocol.plans import AdmissionRequest, PrefillPlan
from protocol.prompts import Prompt
from protocol.retrieval import CandidateSet

_NOTHING_FOUND = CandidateSet(stage=1, of=1, docs=(), scores=(), final=True, elapsed_ms=0.0)


class QueryPipeline:
    """Takes a query through the other three parts; holds no state of its own between queries.

    ``recent`` hears of the documents that are found, one of its own by default.
    """

    def __init__(
        self,
        parts: Parts,
        *,
        metrics: GatewayMetrics,
        releases: Releases,
        query_log: QueryLog,
        settings: GatewaySettings,
        settling: Settling,
        tracing: Tracing | None = None,
        recent: RecentDocuments | None = None,
    ) -> None:
        self._parts = parts
        self._metrics = metrics
        self._releases = releases
        self._query_log = query_log
        self._settings = settings
        self._settling = settling
        self._tracing = tracing or Tracing()
        self._recent = recent or RecentDocuments()

    async def run(self, transcript: Transcript) -> AsyncGenerator[Event]:
        """The query's events up to ``query.completed``; raises what any part raises, and DeadlineExceeded.

        However it ends, closing and cancelling included, the controller hears of it exactly once.
        """
        query = transcript.query
        deadline = Deadline(self._settings.query_timeout_s)
        searched_at = time.time()
        with (
            self._timed(transcript),
            self._tracing.query(query) as trace,
            self._generation(transcript, deadline, trace) as generation,
            self._speculation(transcript, deadline, searched_at, trace) as speculation,
        ):
            yield transcript.created()

            found: CandidateSet | None = None
            async for found in self._search(query, deadline, generation.lease, trace):
                transcript.searched(found)
                await speculation.consider(found)
                if query.include_stages:
                    yield transcript.stage(found)
            if found is None or not found.final:
                raise InternalError("The search ended without its final documents.")
            if found.missing_shards:
                self._metrics.partial()
            self._note(query, found)

            guess = speculation.confirmed()
            prompt = guess.plan.prompt if guess is not None else self._lay_out(query, found)
            transcript.place(found, prompt)
            asked = AdmissionRequest(query.query_id, query.namespace, prompt, searched_at, query.order)
            if guess is not None:
                generation.take_over(guess)
            else:
                # A full queue refuses at once, and before the first event a refusal is still a status. Whoever has a
                # place and waits long for his turn gets his sources meanwhile.
                await generation.ask(asked)
            yield transcript.retrieved()

            # Tokens leave from here on: the documents that they rest on are final.
            async for plan, step in generation.steps(asked, query.sampling):
                if step.prefill is not None:
                    self._metrics.prefilled(plan, step.prefill)
                for event in transcript.step(plan, step):
                    yield event

            transcript.speculated(speculation.timings(plan.prompt, found.elapsed_ms))
            completed = transcript.completed()
            self._metrics.overlapped(completed.timings.non_overlapped_ms / 1000)
            trace.completed(completed.response)
            generation.completed()
            yield completed

    @contextmanager
    def _timed(self, transcript: Transcript) -> Iterator[None]:
        error: BaseException | None = None
        try:
            yield
        except BaseException as raised:
            error = raised
            raise
        finally:
            self._metrics.ended(transcript, error)

    def _generation(self, transcript: Transcript, deadline: Deadline, trace: QueryTrace) -> Generation:
        def on_turn(plan: PrefillPlan) -> None:
            transcript.admit(plan)
            self._metrics.admitted(plan.queued_ms / 1000, plan.overtaken)

        query_id = transcript.query.query_id
        return Generation(
            query_id,
            self._parts,
            self._releases,
            deadline,
            self._settings,
            self._metrics,
            trace,
            transcript.timeline,
            on_turn,
        )

    def _speculation(
        self, transcript: Transcript, deadline: Deadline, searched_at: float, trace: QueryTrace
    ) -> Speculation:
        within_s = self._settings.first_step_timeout_s
        return Speculation(
            transcript,
            self._parts,
            self._releases,
            deadline,
            within_s,
            self._lay_out,
            self._metrics,
            self._settling,
            searched_at,
            trace,
        )

    async def _search(
        self, query: Query, deadline: Deadline, lease: Lease, trace: QueryTrace
    ) -> AsyncGenerator[CandidateSet]:
        before_ms = 0.0
        try:
            stages = lease.closing(self._parts.retriever.search(trace.retrieval(query.search)))
            async for found in deadline.each(stages):
                trace.found(found)
                self._metrics.stage(found.stage, (found.elapsed_ms - before_ms) / 1000)
                before_ms = found.elapsed_ms
                yield found
        except (UnknownCollection, NoDocuments):
            if not query.documents_optional:
                raise
            trace.found(_NOTHING_FOUND)
            yield _NOTHING_FOUND

    def _note(self, query: Query, found: CandidateSet) -> None:
        self._recent.found(query.namespace, found.docs)
        # Documents behind a system prompt of the caller's own stand on another path than those that are warmed up.
        if found.docs and query.messages[0].role != "system":
            self._query_log.note(query.search)

    def _lay_out(self, query: Query, found: CandidateSet) -> Prompt:
        try:
            return self._parts.layout.lay_out(query.messages, found.docs, query.sampling.max_tokens)
        except QuestionTooLong as error:
            if error.param != "messages":
                raise
            raise QuestionTooLong(error.message, query.question_field) from error
