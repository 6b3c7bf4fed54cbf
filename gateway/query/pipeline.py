"""The life of one query: rewrite, search, speculate, lay out, admit, stream, complete."""

from collections.abc import AsyncGenerator
from contextlib import closing
from dataclasses import KW_ONLY, dataclass, field

from gateway.metrics.gateway_metrics import GatewayMetrics
from gateway.query.context import QueryContext
from gateway.query.generation import Generation
from gateway.query.query import Query
from gateway.query.rewriting import FollowUpRewriter
from gateway.query.search import QuerySearch
from gateway.query.speculation import Speculation
from gateway.query.speculation_start import SpeculationStart
from gateway.query.tracing import Tracing
from gateway.query.transcript import Transcript
from gateway.settings import GatewaySettings
from gateway.stores.query_log import QueryLog
from gateway.stores.recent import ApproximateAnswer, ApproximateAnswers, RecentDocuments
from gateway.tasks import BackgroundTasks, Deadline
from gateway.wire.events import Event
from gateway.wire.reply import Reply
from gateway.wire.reuse import approximation_of
from protocol.parts import Parts
from protocol.plans import PrefillPlan
from protocol.prompts import Prompt
from protocol.retrieval import CandidateSet, SearchRequest


@dataclass
class QueryPipeline:
    """Runs queries through the retriever, the controller and the generator. Holds no state between queries."""

    parts: Parts
    _: KW_ONLY
    metrics: GatewayMetrics
    tasks: BackgroundTasks
    query_log: QueryLog
    settings: GatewaySettings
    speculation_start: SpeculationStart
    tracing: Tracing = field(default_factory=Tracing)
    recent: RecentDocuments = field(default_factory=RecentDocuments)
    approximate: ApproximateAnswers = field(default_factory=lambda: ApproximateAnswers(0.0))

    async def run(self, transcript: Transcript) -> AsyncGenerator[Event]:
        """The query's events up to ``query.completed``. Raises what the parts raise, and DeadlineExceeded.

        However the query ends, closing and cancelling included, each plan that it asked for is completed exactly once.
        """
        context = self._context(transcript)
        query = context.query
        with (
            context.recorded(),
            closing(QuerySearch(context)) as search,
            Generation(context) as generation,
            Speculation(context, self.speculation_start) as speculation,
        ):
            yield transcript.created()

            documents = query.found
            if documents is None:
                # Let the model rewrite a follow-up, if that is wanted.
                request = await FollowUpRewriter(context).search()

                # Search, and speculate on the provisional documents.
                async for found in search.of(request):
                    if not query.context_only:
                        await speculation.consider(found)
                    if query.include_stages:
                        yield transcript.stage(found)
                documents = search.documents
                self._remember(query, request, documents)

            # Lay out the prompt and admit the query, unless a guess on these documents is running already.
            guess = speculation.confirmed()
            prompt = await context.lay_out(documents) if guess is None else guess.request.prompt
            transcript.laid_out(documents, prompt)
            if query.context_only:
                yield transcript.retrieved()
                for event in transcript.context(self.parts.layout):
                    yield event
                completed = transcript.completed()
                context.trace.completed(completed.response)
                yield completed
                return
            if guess is None:
                # Before the next event: until a response starts, a refusal is an HTTP status.
                await generation.admit(prompt, documents)
            else:
                generation.take_over(guess)
            yield transcript.retrieved()

            # Stream. The documents are final, so tokens may leave.
            async for plan, step in generation.steps():
                if step.prefill is not None:
                    context.metrics.prefilled(plan, step.prefill)
                for event in transcript.step(plan, step):
                    yield event

            # Complete.
            found_ms = context.timeline.search_began_ms + documents.elapsed_ms
            speculated = speculation.timings(plan.prompt, found_ms)
            speculation.learn(plan.prompt)
            await transcript.cite()
            completed = transcript.completed(speculated)
            context.metrics.non_overlapped.observe(completed.timings.non_overlapped_ms / 1000)
            context.trace.completed(completed.response)
            generation.completed()
            self._note_approximate(transcript, plan, prompt, documents, completed.response)
            yield completed

    def _context(self, transcript: Transcript) -> QueryContext:
        return QueryContext(
            parts=self.parts,
            settings=self.settings,
            metrics=self.metrics,
            tasks=self.tasks,
            transcript=transcript,
            trace=self.tracing.query(transcript.query),
            deadline=Deadline(self.settings.query_timeout_s),
        )

    def _note_approximate(
        self, transcript: Transcript, plan: PrefillPlan, prompt: Prompt, found: CandidateSet, reply: Reply
    ) -> None:
        """Note an answer to approximate KV, for a comparison. ``prompt`` has its facts in full."""
        approximation = approximation_of(plan, reply.reuse)
        if approximation is not None:
            query = transcript.query
            answer = ApproximateAnswer(
                query.query_id, plan.namespace, prompt, approximation, reply.output_text, found.revisions
            )
            self.approximate.note(answer, query.sampling)

    def _remember(self, query: Query, request: SearchRequest, documents: CandidateSet) -> None:
        self.recent.found(query.namespace, documents.docs)
        # With a system prompt of the caller's own, the documents are on another path than those that are warmed up.
        if documents.docs and query.messages[0].role != "system":
            self.query_log.note(request)
