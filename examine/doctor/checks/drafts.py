"""Speculative decoding: what the configured drafts gain on answers about documents."""

from statistics import median
from typing import NamedTuple
from uuid import uuid4

from prometheus_client.parser import text_string_to_metric_families

from examine.doctor.checks.engines import PlainEngine
from examine.doctor.context import Context
from examine.doctor.outcome import Outcome
from examine.measuring.engines import later_token_ms
from examine.measuring.kv_paths import INSTANCE
from generator.engines.vllm_engine import VllmEngine
from protocol.generation import Sampling
from protocol.plans import PrefillPlan

_OPTION = "speculative_config"
_TOKENS = Sampling(max_tokens=48, ignore_eos=True)
_NOISE = 1.05
_DRAFTED, _ACCEPTED = "vllm:spec_decode_num_draft_tokens_total", "vllm:spec_decode_num_accepted_tokens_total"


class Gain(NamedTuple):
    """Milliseconds of a later token with drafts and without them, and how many drafted tokens were accepted."""

    with_ms: float
    without_ms: float
    drafted: float
    accepted: float

    def outcome(self) -> Outcome:
        """Warns if drafts gain nothing."""
        share = f"{self.accepted / self.drafted:.0%} of" if self.drafted else "none of no"
        figure = (
            f"a later token takes {self.with_ms:.1f} ms, {self.without_ms:.1f} without drafts; "
            f"{share} drafted tokens are accepted"
        )
        if self.with_ms > _NOISE * self.without_ms:
            return Outcome.warning(f"drafts make answers slower here: leave {_OPTION} out", figure)
        return Outcome.passed(figure)


class Drafts:
    """Compares the time of later tokens with the configured drafts and without them, one answer at a time."""

    name = "speculative decoding"
    needs = (PlainEngine.name,)

    async def run(self, context: Context) -> Outcome:
        """Skipped if none is configured."""
        if not context.settings.engine_args.get(_OPTION):
            return Outcome.skipped(f"generator.engine_args has no {_OPTION}")
        engine = await context.engine.start_plain()
        before = await draft_counts(engine)
        with_ms = await _token_ms(engine, context, "with drafts")
        drafted, accepted = (after - sooner for after, sooner in zip(await draft_counts(engine), before, strict=True))
        engine = await context.engine.start_plain(leave_out=_OPTION)
        without_ms = await _token_ms(engine, context, "without drafts")
        await context.engine.close()
        return Gain(with_ms, without_ms, drafted, accepted).outcome()


async def _token_ms(engine: VllmEngine, context: Context, step: str) -> float:
    """The median over the prompts' answers."""
    took = []
    for done, prompt in enumerate(context.prompts):
        context.progress(f"answers {step}", done, len(context.prompts))
        took.append(await later_token_ms(engine, PrefillPlan(uuid4().hex, INSTANCE, uuid4().hex, prompt), _TOKENS))
    context.progress(f"answers {step}", len(context.prompts), len(context.prompts))
    return median(took)


async def draft_counts(engine: VllmEngine) -> tuple[float, float]:
    """How many tokens vLLM has drafted and accepted in this process."""
    counts = {_DRAFTED: 0.0, _ACCEPTED: 0.0}
    for text in (await engine.metrics()).values():
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if sample.name in counts:
                    counts[sample.name] += sample.value
    return counts[_DRAFTED], counts[_ACCEPTED]
