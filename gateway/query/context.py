"""What every step of one query needs."""

from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from gateway.metrics.gateway_metrics import GatewayMetrics
from gateway.query.laid_out import laid_out
from gateway.query.lease import Lease
from gateway.query.query import Query
from gateway.query.timeline import Timeline
from gateway.query.tracing import QueryTrace
from gateway.query.transcript import Transcript
from gateway.settings import GatewaySettings
from gateway.tasks import BackgroundTasks, Deadline
from protocol.errors import EngineDied, EngineFailed, QuestionTooLong
from protocol.generation import GenerationStep, Sampling
from protocol.parts import Parts
from protocol.plans import AdmissionRequest, PrefillPlan
from protocol.prompts import Prompt
from protocol.retrieval import CandidateSet


class EngineLosses:
    """Counts the engines that died while they may have computed a query, be it for a guess or a rewriting of it.

    The first one may have died for any reason. After the second one, the query itself is the likely reason.
    """

    def __init__(self) -> None:
        self._computed = 0

    def note(self, error: EngineDied) -> None:
        """Note a loss. Raises EngineFailed if the query must be given to no other engine."""
        self._computed += error.begun
        if self._computed > 1:
            raise EngineFailed("Two engines died while they computed this request. It is not tried again.") from error


@dataclass(frozen=True)
class QueryContext:
    """One query's deadline, transcript and trace, with the parts and the metrics that all queries share."""

    parts: Parts
    settings: GatewaySettings
    metrics: GatewayMetrics
    tasks: BackgroundTasks
    transcript: Transcript
    trace: QueryTrace
    deadline: Deadline
    losses: EngineLosses = field(default_factory=EngineLosses)

    @property
    def query(self) -> Query:
        """The query itself."""
        return self.transcript.query

    @property
    def timeline(self) -> Timeline:
        """The query's phases and moments."""
        return self.transcript.timeline

    @contextmanager
    def recorded(self) -> Iterator[None]:
        """Record how the block ends, in the trace and in the metrics."""
        error: BaseException | None = None
        try:
            with self.trace:
                yield
        except BaseException as raised:
            error = raised
            raise
        finally:
            self.metrics.ended(self.transcript, error)

    async def lay_out(self, found: CandidateSet) -> Prompt:
        """The prompt on these documents. Raises QuestionTooLong, which names the request's own field."""
        query = self.query
        try:
            return await laid_out(
                self.parts.layout,
                query.messages,
                found.docs,
                query.sampling.max_tokens,
                paths=query.prompt_paths(found),
                budget=query.budget,
                owner=query.namespace,
            )
        except QuestionTooLong as error:
            if error.param != "messages":
                raise
            raise QuestionTooLong(error.message, query.question_field) from error

    def admission_request(self, plan_id: str, prompt: Prompt, found: CandidateSet) -> AdmissionRequest:
        """The request for a plan for the prompt on the documents that were ``found``.

        ``plan_id`` is unique among all attempts at all queries. It is the query's own id for the first attempt on final
        documents; a speculation, a retry and a rewriting append a suffix, which nothing parses.
        """
        query = self.query
        return AdmissionRequest(
            plan_id,
            query.namespace,
            prompt,
            found.revisions,
            query.order,
            scores=found.scores,
            reuse=query.reuse,
            recompute_share=query.recompute_share,
        )

    def lease(self, plan_id: str) -> Lease:
        """A new lease for a plan."""
        return Lease(plan_id, self.parts.controller, self.tasks)

    def stream(
        self, lease: Lease, plan: PrefillPlan, rewriting: Sampling | None = None
    ) -> AsyncGenerator[GenerationStep]:
        """Hand an admitted plan to the generator, and charge for its prompt. Returns its steps, under its lease.

        It generates the answer, or a ``rewriting`` of the question by this sampling.
        """
        meter, pace = self.transcript.meter, self.settings.pace
        (meter.began if rewriting is None else meter.began_rewriting)(plan.prompt.token_count)
        sampling = rewriting or self.query.sampling
        stream = self.parts.generator.stream(plan, sampling)
        return lease.steps(stream, self.deadline, pace.first_step_timeout_s, self.trace.chat(plan, sampling))
