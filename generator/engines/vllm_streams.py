"""Streams plans through vLLM, and reports what their prefills came to."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, NamedTuple
from uuid import uuid4

import msgspec
import structlog

from generator.connector.messages import NOT_COMPOSED, Prefilled, RequestMessage
from generator.engines.vllm_requests import VllmRequests
from generator.engines.vllm_sampling import finish_reason, sampling_params, token_logprobs
from protocol.generation import GenerationStep, PrefillResult, Sampling
from protocol.kv import LostCopy, adapter_of
from protocol.plans import PrefillPlan
from protocol.tiers import Tier

if TYPE_CHECKING:
    from vllm.outputs import RequestOutput

    from generator.connector.report_router import ReportRouter

log = structlog.get_logger(__name__)

_REPORT_WAIT_S = 1.0
_LONGEST_STEP_S = 30.0


class FirstPrefill(NamedTuple):
    """What the ``first`` prefill of a ``plan`` came to.

    ``prefill`` is None if none of it is kept. ``unwritten`` is that of its last step (``GenerationStep``).
    """

    plan: PrefillPlan
    first: PrefillPlan
    prefill: PrefillResult | None
    unwritten: tuple[LostCopy, ...] | None

    def alone(self, ended: GenerationStep) -> GenerationStep:
        """The step that ends the plan before its own first token. The KV of this prefill is kept."""
        return msgspec.structs.replace(ended, prefill=self.prefill, unwritten=self.unwritten)

    def in_front_of(self, step: GenerationStep) -> GenerationStep:
        """A step of the plan, with what this prefill has done for it."""
        if step.prefill is not None and self.prefill is not None:
            step = msgspec.structs.replace(step, prefill=self._joined(self.prefill, step.prefill))
        if step.unwritten is not None:
            written = None if self.unwritten is None else (*self.unwritten, *step.unwritten)
            step = msgspec.structs.replace(step, unwritten=written)
        return step

    def _joined(self, first: PrefillResult, prefill: PrefillResult) -> PrefillResult:
        """The result of both prefills. The tokens that the first one computed were neither cached nor donated."""
        computed = {node.key for node in self.first.nodes if node.loaded_from is None}
        donated = sum(node.tokens for node in self.plan.nodes if node.donor is not None and node.donor.key in computed)
        loaded = first.loaded if first.cached_tokens <= prefill.cached_tokens else prefill.loaded
        return msgspec.structs.replace(
            prefill,
            cached_tokens=sum(loaded.values()),
            composed_tokens=max(0, prefill.composed_tokens - donated),
            prefill_ms=first.prefill_ms + prefill.prefill_ms,
            kv_load_ms=first.kv_load_ms + prefill.kv_load_ms,
            loaded=loaded,
            lost=(*first.lost, *prefill.lost),
            reads=(*first.reads, *prefill.reads),
        )


class PlanStreams:
    """Streams plans as vLLM requests. With a ``router``, the connector executes their loads and saves.

    ``boot`` identifies this start of the engine: plans made for an earlier one name KV that no longer exists.
    """

    def __init__(self, requests: VllmRequests, router: "ReportRouter | None", boot: str | None) -> None:
        self._requests = requests
        self._router = router
        self._boot = boot
        # The running prefills before others, by the ids of those.
        self._firsts: dict[str, str] = {}

    def end(self, plan_id: str) -> None:
        """End a plan's request in the background, or that of the prefill before it."""
        self._requests.end(plan_id)
        if plan_id in self._firsts:
            self._requests.end(self._firsts[plan_id])

    async def stream(self, plan: PrefillPlan, sampling: Sampling) -> AsyncGenerator[GenerationStep, None]:
        """Prefill a plan's prompt and stream the answer. Closing the iterator aborts the request."""
        for plan_id in plan.ends:
            self.end(plan_id)
        first = await self._prefill_first(plan, plan.first) if plan.first is not None else None
        if self._requests.has_ended_early(plan.query_id):
            ended = GenerationStep("", 0, finish_reason="ended")
            yield ended if first is None else first.alone(ended)
            return
        begun = False
        async with contextlib.aclosing(self._steps(plan, sampling)) as steps:
            async for step in steps:
                if first is None:
                    yield step
                else:
                    yield first.in_front_of(step) if begun or step.finish_reason != "ended" else first.alone(step)
                begun = True

    async def _prefill_first(self, plan: PrefillPlan, first: PrefillPlan) -> FirstPrefill:
        """Carry out the prefill before a plan's."""
        prefill: PrefillResult | None = None
        unwritten: tuple[LostCopy, ...] | None = None
        self._firsts[plan.query_id] = first.query_id
        try:
            if not self._requests.has_ended_early(plan.query_id):
                async with contextlib.aclosing(self._steps(first, Sampling(max_tokens=1))) as steps:
                    async for step in steps:
                        prefill, unwritten = step.prefill or prefill, step.unwritten
        finally:
            del self._firsts[plan.query_id]
        return FirstPrefill(plan, first, prefill, unwritten)

    async def _steps(self, plan: PrefillPlan, sampling: Sampling) -> AsyncGenerator[GenerationStep, None]:
        parameters = sampling_params(sampling)
        with contextlib.ExitStack() as waiting:
            report: asyncio.Future[Prefilled] | None = None
            written: asyncio.Future[tuple[LostCopy, ...]] | None = None
            if self._router is not None:
                parameters.extra_args = {"kv_transfer_params": self._message(plan).as_parameters()}
                report = waiting.enter_context(self._router.prefilled(plan.query_id))
                written = waiting.enter_context(self._router.written(plan.query_id))
            # No other request has this salt, so none finds the KV of a plan that is unshared or composes.
            composes = plan.recompute is not None or plan.trees is not None
            salt = uuid4().hex if plan.unshared or composes else plan.namespace
            outputs = self._requests.generate(
                plan.query_id, plan.prompt.token_ids, salt, parameters, adapter_of(plan.namespace)
            )
            async with contextlib.aclosing(outputs):
                first = True
                async for output in outputs:
                    completion = output.outputs[0]
                    if completion.finish_reason == "abort":
                        prefill = await self._ended_prefill(plan, report) if first else None
                        yield GenerationStep("", 0, prefill, "ended", unwritten=_result(written))
                        return
                    if not completion.token_ids and not output.finished:
                        continue
                    yield GenerationStep(
                        text=completion.text,
                        tokens=len(completion.token_ids),
                        prefill=await self._prefill(output, plan, report) if first else None,
                        finish_reason=finish_reason(completion.finish_reason) if output.finished else None,
                        logprobs=token_logprobs(completion, sampling.alternatives) if sampling.logprobs else (),
                        unwritten=_result(written) if output.finished else None,
                    )
                    first = False

    def _message(self, plan: PrefillPlan) -> RequestMessage:
        """The connector's message for a plan. A plan for an earlier boot loads, keeps and moves nothing."""
        if plan.boot and self._boot is not None and plan.boot != self._boot:
            plan = msgspec.structs.replace(plan, nodes=(), moves=(), spare=())
        return RequestMessage.of_plan(plan)

    async def _ended_prefill(
        self, plan: PrefillPlan, report: "asyncio.Future[Prefilled] | None"
    ) -> PrefillResult | None:
        """What is kept of a prefill that was ended before its first token arrived, or None for nothing."""
        if self._router is None or report is None:
            return None
        # vLLM ends the stream at once; the connector reports the request when its step is over.
        await asyncio.wait({report}, timeout=_LONGEST_STEP_S)
        if not report.done():
            return None
        prefilled = report.result()
        # The engine may have sampled the first token already: then all nodes are kept, although the end overtook it.
        reached = plan.prompt.token_count if prefilled.reached is None else prefilled.reached
        if not reached:
            return None
        return _reported(PrefillResult(reached, 0, 0.0), prefilled, self._router)

    async def _prefill(
        self, output: "RequestOutput", plan: PrefillPlan, report: "asyncio.Future[Prefilled] | None"
    ) -> PrefillResult:
        metrics = output.metrics
        scheduled = metrics.first_token_ts - metrics.scheduled_ts if metrics is not None else 0.0
        cached = output.num_cached_tokens or 0
        result = PrefillResult(
            prompt_tokens=plan.prompt.token_count,
            cached_tokens=cached,
            prefill_ms=scheduled * 1000,
            loaded={Tier.GPU: cached} if cached else {},
        )
        if self._router is None or report is None:
            return result
        # The report leaves the engine together with the token, and is routed right after it.
        await asyncio.wait({report}, timeout=_REPORT_WAIT_S)
        if not report.done():
            log.warning("prefill_not_reported", query_id=plan.query_id)
            return result
        prefilled = report.result()
        composed = prefilled.composed or NOT_COMPOSED
        result = msgspec.structs.replace(
            result,
            composed_tokens=composed.reused,
            recomputed_tokens=composed.recomputed,
            deviation=composed.deviation,
            in_trees=plan.trees is not None and prefilled.composed is not None,
        )
        return _reported(result, prefilled, self._router)


def _reported(result: PrefillResult, prefilled: Prefilled, router: "ReportRouter") -> PrefillResult:
    """The result, with what the connector has reported of the loads."""
    return msgspec.structs.replace(
        result,
        cached_tokens=sum(prefilled.loaded.values()),
        kv_load_ms=prefilled.load_ms,
        loaded=prefilled.loaded,
        lost=router.take_lost(),
        reads=prefilled.reads,
    )


def _result(written: "asyncio.Future[tuple[LostCopy, ...]] | None") -> tuple[LostCopy, ...] | None:
    return written.result() if written is not None and written.done() else None
