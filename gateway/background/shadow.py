"""Shadow comparison: a sample of approximate answers against those of full prefills of the same prompts."""

from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from functools import partial
from uuid import uuid4

import structlog

from gateway.background.idle import IdleTime
from gateway.metrics.gateway_metrics import GatewayMetrics
from gateway.query.lease import Lease
from gateway.settings import GatewaySettings
from gateway.stores.recent import ApproximateAnswer, ApproximateAnswers
from gateway.tasks import BackgroundTasks, Deadline
from protocol.errors import RagtreeError
from protocol.generation import Sampling
from protocol.parts import Parts
from protocol.plans import AdmissionRequest, Reuse
from protocol.repeating import in_background

COMPARED_TOKENS = 4
"""Of each answer. Two full prefills also differ sometimes, by rounding, and the more often the longer they answer."""

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Shadow:
    """Computes each of ``answers`` again after a full prefill, while no query runs, and counts those that differ."""

    answers: ApproximateAnswers
    idle: IdleTime
    parts: Parts
    metrics: GatewayMetrics
    tasks: BackgroundTasks
    settings: GatewaySettings

    def comparing(self) -> AbstractAsyncContextManager[None]:
        """Compare in the background while the context is open."""
        return in_background(self._run())

    async def _run(self) -> None:
        while True:
            answer = await self.answers.next()
            try:
                same = await self.idle.spend(partial(self._compare, answer))
            except RagtreeError as error:
                log.warning("approximate_answer_not_compared", query_id=answer.query_id, error=str(error))
                self.metrics.shadows.labels(answer.approximation, "failed").inc()
                continue
            if not same:
                log.warning("approximate_answer_differs", query_id=answer.query_id, approximation=answer.approximation)
            self.metrics.shadows.labels(answer.approximation, "same" if same else "different").inc()

    async def _compare(self, answer: ApproximateAnswer) -> bool | None:
        """Whether the answer begins like that of a full prefill; None if the controller is busy."""
        deadline = Deadline(self.settings.query_timeout_s, "The answer was not compared")
        stats = await deadline.wait(self.parts.controller.stats())
        if stats.running or stats.queued:
            return None
        query_id = f"shadow_{uuid4().hex}"
        text = ""
        with Lease(query_id, self.parts.controller, self.tasks) as lease:
            request = AdmissionRequest(query_id, answer.namespace, answer.prompt, answer.found_at, reuse=Reuse.EXACT)
            plan = await deadline.wait(lease.admit(self.parts.controller.admit(request)))
            stream = self.parts.generator.stream(plan, Sampling(COMPARED_TOKENS))
            async for step in lease.steps(stream, deadline, self.settings.pace.first_step_timeout_s):
                text += step.text
            lease.completed()
        return answer.text.startswith(text)
