"""Two requests that share a load which fails."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager

from examine.doctor.checks.engines import CachingEngine
from examine.doctor.context import Context
from examine.doctor.differences import differ
from examine.doctor.outcome import Outcome
from examine.measuring.engines import Generation, generate
from examine.measuring.kv_paths import QUESTION_TOKENS, KvPath, random_segment
from examine.measuring.tier_rounds import carried_out, forget, move
from protocol.generation import PrefillResult, Sampling
from protocol.kv import LostCopy, Orders
from protocol.prompts import Segment, SegmentKind
from protocol.tiers import Tier

_SYSTEM_TOKENS, _BEHIND_TOKENS, _LAST_TOKENS = 27, 150, 70
_BUSY_TOKENS = 500
_DROPPED = 1
"""The index of the long document."""
_LEAST_TOKENS = 64


class FailingLoad:
    """Drops a long document's KV, and sends two requests that plan to load it. Both have to compute it instead.

    The document takes more than one engine step if the model's context allows it: then the second request, which has
    one more document, meets the first one's blocks half computed.
    """

    name = "shared failing load"
    needs = (CachingEngine.name,)

    async def run(self, context: Context) -> Outcome:
        """Fails if an answer is wrong, or if the missing copy is not reported."""
        if not context.below:
            return Outcome.skipped("there is no tier below the engine's own memory")
        tier = context.below[0]
        segments = _segments(context)
        dropped = len(segments[_DROPPED].token_ids)
        if dropped < _LEAST_TOKENS:
            return Outcome.skipped("generator.max_model_len or host memory has no room for a long document")
        engine = context.engine.running
        longer = _path(context, segments)
        path = _path(context, segments[:-1], longer.namespace)
        path.pages = longer.pages[:-1]
        await context.compute(path)
        await move(engine, path, Tier.GPU, tier)
        await carried_out(engine, Orders((path.moves(tier, None)[len(path.keys) - 1 - _DROPPED],)))
        async with _busy(context, segments):
            answers = await asyncio.gather(
                context.answer(path.plan("why?", tier, None)),
                context.answer(longer.plan("how?", [*([tier] * len(path.keys)), None], None)),
            )
        # From what vLLM's own cache has kept of the two.
        again = await context.answer(longer.plan("how?", None, None))
        await forget(context.engine.running, path)
        if await _differ(context, path, "why?", answers[0]) or await _differ(context, longer, "how?", answers[1]):
            return Outcome.failed(f"an answer is wrong after a load from {tier} failed: do not use it")
        if await _differ(context, longer, "how?", again):
            return Outcome.failed(f"vLLM's own cache keeps wrong KV after a load from {tier} failed: do not use it")
        if LostCopy(path.keys[_DROPPED], tier) not in (*answers[0].prefill.lost, *answers[1].prefill.lost):
            return Outcome.failed(f"a copy that is missing in {tier} was not reported")
        return Outcome.passed(f"2 requests, {dropped} tokens dropped from {tier}: both right")


@asynccontextmanager
async def _busy(context: Context, segments: Sequence[Segment]) -> AsyncGenerator[None]:
    """Keep the engine busy with another answer. Requests that come during one of its steps share the next one."""
    began = asyncio.Event()

    async def first_token(_prefill: PrefillResult) -> None:
        began.set()

    plan = _path(context, segments[:_DROPPED]).plan("busy?", None, None)
    answer = asyncio.create_task(generate(context.engine.running, plan, Sampling(_BUSY_TOKENS), on_prefill=first_token))
    started = asyncio.create_task(began.wait())
    try:
        await asyncio.wait((answer, started), return_when=asyncio.FIRST_COMPLETED)
        yield
    finally:
        for task in (answer, started):
            task.cancel()
        await asyncio.gather(answer, started, return_exceptions=True)


async def _differ(context: Context, path: KvPath, question: str, answer: Generation) -> bool:
    """Return whether an answer is not the one that is computed without any cache."""
    right = await context.answer(_path(context, path.segments).plan(question, None, None))
    return differ(answer, right, context.reference.tolerances.rounding)


def _segments(context: Context) -> list[Segment]:
    memory, step = context.memory, context.step
    pages = memory.host_pages if context.below[0] is Tier.HOST else memory.disk_pages
    room = min(context.max_model_len, pages * memory.page_tokens) - 2 * memory.page_tokens
    others = _SYSTEM_TOKENS + _BEHIND_TOKENS + _LAST_TOKENS + QUESTION_TOKENS + context.sizes.answer_tokens
    wanted = 2 * step.prompt_tokens + _LEAST_TOKENS if step is not None else 0
    tokens = min(max(520, wanted), max(0, room - others))
    return [
        random_segment("system", _SYSTEM_TOKENS, SegmentKind.SYSTEM),
        random_segment("long", tokens),
        random_segment("behind", _BEHIND_TOKENS),
        random_segment("last", _LAST_TOKENS),
    ]


def _path(context: Context, segments: Sequence[Segment], namespace: str | None = None) -> KvPath:
    return KvPath(segments, context.memory.paging, namespace)
