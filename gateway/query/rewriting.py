"""Rewriting a follow-up by the model, before its search."""

from typing import Literal

import structlog

from gateway.query.context import QueryContext
from gateway.query.follow_ups import REWRITING, question_in, rewriting_prompt
from gateway.query.laid_out import laid_out
from gateway.wire.reply import RewriteFailure, Rewriting
from protocol.errors import DeadlineExceeded, EngineDied, EngineFailed, RagtreeError
from protocol.generation import FinishReason
from protocol.plans import AdmissionRequest, Reuse
from protocol.retrieval import SearchRequest

log = structlog.get_logger(__name__)


class FollowUpRewriter:
    """Makes a question that stands alone of one query's follow-up. The generation is admitted like any other.

    It may take ``Pace.rewrite_timeout_s``, its wait in the queue included.
    """

    def __init__(self, context: QueryContext) -> None:
        self._context = context
        self._tokens = 0
        self._text = ""
        self._finish_reason: FinishReason | None = None

    async def search(self) -> SearchRequest:
        """The search for the query's documents: for the rewritten question, if it was to be and could be rewritten.

        Raises EngineFailed if an engine failed at the conversation. Other errors of the parts are not raised: a query
        that they cannot serve fails at its own admission.
        """
        query = self._context.query
        if query.rewrite_from == 0:
            return query.search
        began_ms = self._context.timeline.now_ms()
        failure = await self._failure()
        question = None if failure is not None else question_in(self._text)
        elapsed_ms = self._context.timeline.now_ms() - began_ms
        status: Literal["done", "failed"] = "done" if failure is None else "failed"
        rewriting = Rewriting(status, failure, question, elapsed_ms, self._tokens)
        self._context.transcript.rewritten(rewriting, began_ms)
        self._context.metrics.rewritten(rewriting)
        return query.search if question is None else query.search.asking(question)

    async def _failure(self) -> RewriteFailure | None:
        context = self._context
        try:
            # If the query's own time is up first, the search says so.
            await context.deadline.wait(self._generate(), context.settings.pace.rewrite_timeout_s)
        except DeadlineExceeded:
            return RewriteFailure.TIMEOUT
        except EngineFailed:
            # The search's answer would be to the same conversation.
            raise
        except RagtreeError as error:
            if isinstance(error, EngineDied):
                context.losses.note(error)
            log.warning("follow_up_not_rewritten", query_id=context.query.query_id, error=str(error))
            return RewriteFailure.FAILED
        if self._finish_reason != "stop":
            return RewriteFailure.TOO_LONG
        return None if question_in(self._text) else RewriteFailure.EMPTY

    async def _generate(self) -> None:
        context, query = self._context, self._context.query
        conversation = rewriting_prompt(query.messages, query.rewrite_from)
        prompt = await laid_out(context.parts.layout, conversation, (), REWRITING.max_tokens, preamble=False)
        request = AdmissionRequest(f"{query.query_id}~rewrite", query.namespace, prompt, found_at=(), reuse=Reuse.EXACT)
        with context.lease(request.query_id) as lease:
            plan = await lease.admit(context.parts.controller.admit(request))
            async for step in context.stream(lease, plan, REWRITING):
                if step.prefill is not None:
                    self._tokens += step.prefill.prompt_tokens
                self._tokens += step.tokens
                context.transcript.meter.generated(step.tokens)
                self._text += step.text
                self._finish_reason = step.finish_reason
            lease.completed()
