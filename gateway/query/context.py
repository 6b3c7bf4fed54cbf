"""What every step of one query needs."""

from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

from gateway.background_tasks import BackgroundTasks
from gateway.deadline import Deadline
from gateway.metrics.gateway_metrics import GatewayMetrics
from gateway.query.laid_out import laid_out
from gateway.query.lease import Lease
from gateway.query.query import Query
from gateway.query.timeline import Timeline
from gateway.query.tracing import QueryTrace
from gateway.query.transcript import Transcript
from gateway.settings import GatewaySettings
from protocol.errors import EngineDied, EngineFailed, QuestionTooLong
from protocol.generation import GenerationStep, Sampling
from protocol.parts import Parts
from protocol.plans import AdmissionRequest, PrefillPlan
from protocol.prompts import Prompt
from protocol.retrieval import CandidateSet, Revisions


class Attempt(NamedTuple):
    """An attempt to generate the answer of ``query_id``. Each attempt is admitted on its own, under its own plan.

    ``speculation`` numbers the query's speculations from 1; 0 means that the documents are final. ``retry`` counts the
    instances that the query has lost before this attempt. ``rewriting``: it generates a question for the search.
    """

    query_id: str
    speculation: int = 0
    retry: int = 0
    rewriting: bool = False

    @property
    def plan_id(self) -> str:
        """Id of the attempt's plan in the controller and in the engine, unique among all attempts.

        The first attempt on final documents has the query's own id. Nothing parses the suffixes of the others.
        """
        if self.rewriting:
            return f"{self.query_id}~rewrite"
        if self.speculation:
            return f"{self.query_id}~{self.speculation}"
        if self.retry:
            return f"{self.query_id}~retry{self.retry}"
        return self.query_id


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
            )
        except QuestionTooLong as error:
            if error.param != "messages":
                raise
            raise QuestionTooLong(error.message, query.question_field) from error

    def admission_request(self, attempt: Attempt, prompt: Prompt, found: CandidateSet) -> AdmissionRequest:
        """The request for a plan for the prompt on the documents that were ``found``."""
        query = self.query
        return AdmissionRequest(
            attempt.plan_id,
            query.namespace,
            prompt,
            found.revisions,
            query.order,
            scores=found.scores,
            reuse=query.reuse,
            recompute_share=query.recompute_share,
        )

    def repeated_request(self, attempt: Attempt, lost: PrefillPlan, found_at: Revisions) -> AdmissionRequest:
        """The request for another plan like one whose instance was lost, with its documents in the same order.

        They were ``found_at`` these revisions.
        """
        query = self.query
        return AdmissionRequest(
            attempt.plan_id,
            query.namespace,
            lost.prompt,
            found_at,
            avoid=(lost.instance,),
            reuse=query.reuse,
            recompute_share=query.recompute_share,
        )

    def lease(self, attempt: Attempt) -> Lease:
        """A new lease for the attempt's plan."""
        return Lease(attempt.plan_id, self.parts.controller, self.tasks)

    def stream(self, lease: Lease, plan: PrefillPlan) -> AsyncGenerator[GenerationStep]:
        """Hand an admitted plan to the generator, and charge for its prompt. Returns its steps, under its lease."""
        self.transcript.meter.began(plan.prompt.token_count)
        return self._steps(lease, plan, self.query.sampling)

    def rewriting_stream(self, lease: Lease, plan: PrefillPlan, sampling: Sampling) -> AsyncGenerator[GenerationStep]:
        """``stream`` for the plan that has the question rewritten."""
        self.transcript.meter.began_rewriting(plan.prompt.token_count)
        return self._steps(lease, plan, sampling)

    def _steps(self, lease: Lease, plan: PrefillPlan, chosen: Sampling) -> AsyncGenerator[GenerationStep]:
        stream, timeout_s = self.parts.generator.stream(plan, chosen), self.settings.pace.first_step_timeout_s
        return lease.steps(stream, self.deadline, timeout_s, self.trace.chat(plan, chosen))
