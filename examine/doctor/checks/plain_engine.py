"""vLLM without RAGTree: whether it runs the model, and the reference for all that follows."""

from collections import defaultdict
from time import perf_counter
from uuid import uuid4

from examine.doctor.checks.model import Model
from examine.doctor.context import Context, Reference
from examine.doctor.differences import Tolerances
from examine.doctor.outcome import Outcome
from examine.doctor.tier_paths import round_path
from examine.measuring.engines import Generation, generate
from examine.measuring.kv_paths import INSTANCE
from examine.measuring.tier_rounds import plain_round
from generator.engines.vllm_engine import VllmEngine
from protocol.errors import InternalError
from protocol.generation import Sampling
from protocol.plans import PrefillPlan
from protocol.prompts import Prompt


class PlainEngine:
    """Starts vLLM with the user's options and no connector. Records its answers, its own rounding, and its times."""

    name = "vLLM without the cache"
    needs = (Model.name,)

    async def run(self, context: Context) -> Outcome:
        """Fails with vLLM's reason if it does not start."""
        began = perf_counter()
        engine = await context.engine.start_plain()
        started_s = perf_counter() - began
        context.step = (await engine.info()).step
        context.reference = Reference(*await _answers(engine, context), await _times(engine, context))
        await context.engine.close()
        tolerances = context.reference.tolerances
        return Outcome.passed(f"starts in {started_s:.0f} s; rounds logprobs within {tolerances.rounding:.1g}")


async def _answers(engine: VllmEngine, context: Context) -> tuple[list[Generation], Tolerances]:
    alone: list[Generation] = []
    behind: list[Generation] = []
    again: list[Generation] = []
    for done, prompt in enumerate(context.prompts):
        context.progress("answers without the cache", done, len(context.prompts))
        namespace = uuid4().hex
        runs = [await _answer(engine, prompt, namespace, context.sizes.answer_tokens) for _ in range(3)]
        if runs[0].prefill.cached_tokens:
            raise InternalError("vLLM found a new prompt in its cache")
        for kept, run in zip((alone, behind, again), runs, strict=True):
            kept.append(run)
    context.progress("answers without the cache", len(context.prompts), len(context.prompts))
    return alone, Tolerances.measured(alone, behind, again)


async def _answer(engine: VllmEngine, prompt: Prompt, namespace: str, tokens: int) -> Generation:
    return await generate(
        engine, PrefillPlan(uuid4().hex, INSTANCE, namespace, prompt), Sampling(tokens, logprobs=True)
    )


async def _times(engine: VllmEngine, context: Context) -> dict[str, list[float]]:
    times: dict[str, list[float]] = defaultdict(list)
    for number in range(-1, context.sizes.rounds):
        took = await plain_round(engine, round_path(context, number))
        # The first round warms up.
        if number >= 0:
            for case, came in took.items():
                times[case].append(came.ttft_ms)
    return times
