"""Answers with KV from every tier."""

from collections import Counter
from collections.abc import Iterator

from examine.doctor.checks.engines import CachingEngine
from examine.doctor.context import Context
from examine.doctor.differences import differ
from examine.doctor.outcome import Outcome
from examine.measuring.engines import Generation
from examine.measuring.kv_paths import KvPath
from examine.measuring.tier_rounds import forget, move
from protocol.prompts import Prompt
from protocol.tiers import Tier


class ExactAnswers:
    """Compares greedy answers and logprobs with those that vLLM computed without any cache.

    Answers from host memory and disk repeat the steps of those from the engine's own memory, and must be equal.
    """

    name = "exact answers"
    needs = (CachingEngine.name,)

    async def run(self, context: Context) -> Outcome:
        """Fails if an answer differs by more than the engine's own rounding, or did not come from the tier."""
        wrong: Counter[Tier] = Counter()
        short: Counter[Tier] = Counter()
        asked = len(context.prompts)
        for done, prompt in enumerate(context.prompts):
            context.progress(self.name, done, asked)
            answers = await _from_each_tier(context, prompt)
            wrong.update(_wrong(context, done, answers))
            tokens = sum(len(segment.token_ids) for segment in prompt.prefix)
            short.update(tier for tier, came in answers.items() if came.prefill.loaded != {tier: tokens})
        context.progress(self.name, asked, asked)
        tiers = (Tier.GPU, *context.below)
        figure = f"{asked} prompts from {', '.join(tiers)}: {wrong.total()} answers differ"
        if wrong:
            tier, count = wrong.most_common(1)[0]
            return Outcome.failed(f"{count} of {asked} answers with KV from {tier} are wrong: do not use it", figure)
        if short:
            tier, count = short.most_common(1)[0]
            return Outcome.failed(f"the KV of {count} of {asked} prompts was not found in {tier} again", figure)
        return Outcome.passed(figure)


async def _from_each_tier(context: Context, prompt: Prompt) -> dict[Tier, Generation]:
    """Return a prompt's answers by where its documents' KV was. Afterwards no tier has it."""
    path = KvPath(prompt.prefix, context.memory.paging)
    answers = {}
    await context.compute(path)
    source = Tier.GPU
    for tier in (Tier.GPU, *context.below):
        if tier is not Tier.GPU:
            await move(context.engine.running, path, source, tier)
        answers[tier] = await context.answer(
            path.plan(prompt.segments[-1], tier, Tier.GPU if tier is Tier.GPU else None)
        )
        source = tier
    await forget(context.engine.running, path)
    return answers


def _wrong(context: Context, number: int, answers: dict[Tier, Generation]) -> Iterator[Tier]:
    reference = context.reference
    for tier, answer in answers.items():
        exact = tier is Tier.GPU or not differ(answer, answers[Tier.GPU], reference.tolerances.repeat)
        if not exact or differ(answer, reference.answers[number], reference.tolerances.rounding):
            yield tier
