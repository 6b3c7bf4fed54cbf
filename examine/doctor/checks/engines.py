"""vLLM alone, as the reference for all that follows, and with RAGTree's connector."""

from collections import defaultdict
from time import perf_counter
from uuid import uuid4

from cachectl.runtime.composing import GateFolder
from examine.doctor.checks.model import Model
from examine.doctor.context import Context, Reference
from examine.doctor.differences import Tolerances
from examine.doctor.outcome import Outcome
from examine.measuring.engines import Generation
from examine.measuring.kv_paths import INSTANCE
from examine.measuring.tier_rounds import plain_round
from generator.connector.refusal import UnsupportedByConnector
from generator.engines.vllm_engine import VllmEngine
from protocol.errors import InternalError
from protocol.plans import PrefillPlan

_GIB = 1 << 30


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
        context.reference = Reference(*await _answers(context), await _times(engine, context))
        await context.engine.close()
        tolerances = context.reference.tolerances
        return Outcome.passed(f"starts in {started_s:.0f} s; rounds logprobs within {tolerances.rounding:.1g}")


async def _answers(context: Context) -> tuple[list[Generation], Tolerances]:
    """Return the prompts' answers, and the engine's own tolerances: from two more runs, with its own prefix cache."""
    came: list[list[Generation]] = []
    for done, prompt in enumerate(context.prompts):
        context.progress("answers without the cache", done, len(context.prompts))
        namespace = uuid4().hex
        runs = [await context.answer(PrefillPlan(uuid4().hex, INSTANCE, namespace, prompt)) for _ in range(3)]
        if runs[0].prefill.cached_tokens:
            raise InternalError("vLLM found a new prompt in its cache")
        came.append(runs)
    context.progress("answers without the cache", len(context.prompts), len(context.prompts))
    alone, behind, again = map(list, zip(*came, strict=True))
    return alone, Tolerances.measured(alone, behind, again)


async def _times(engine: VllmEngine, context: Context) -> dict[str, list[float]]:
    times: dict[str, list[float]] = defaultdict(list)
    for number in range(-1, context.sizes.rounds):
        took = await plain_round(engine, context.round_path(number))
        # The first round warms up.
        if number >= 0:
            for case, came in took.items():
                times[case].append(came.ttft_ms)
    return times


class CachingEngine:
    """Starts the stack's engine, and leaves it running for the checks that follow."""

    name = "vLLM with the cache"
    needs = (PlainEngine.name,)

    async def run(self, context: Context) -> Outcome:
        """Fails with the reason if the connector refuses the model or the options, unless a stack would go without."""
        if not context.settings.kv.enabled:
            return Outcome.skipped("generator.kv.enabled is false")
        began = perf_counter()
        try:
            engine = await context.engine.start_caching()
        except UnsupportedByConnector as refusal:
            if context.settings.kv.enabled != "auto":
                raise
            return Outcome.skipped(f"a stack serves this model without it. {refusal.message}")
        memory = (await engine.info()).kv
        if memory is None:
            return Outcome.failed("generator.engine_args names another KV connector: remove its kv_transfer_config")
        context.memory = memory
        return Outcome.passed(
            f"starts in {perf_counter() - began:.0f} s on {memory.device}; {memory.layout}; "
            f"pages of {memory.page_tokens} tokens, {memory.page_bytes / 1024:.0f} KiB"
        )


class HostSize:
    """Compares ``generator.kv.host_gib`` with the part of the engine's own KV cache that documents may take."""

    name = "size of host memory"
    needs = (CachingEngine.name,)

    async def run(self, context: Context) -> Outcome:
        """Warns if host memory holds no more than the engine itself, because it then adds nothing."""
        memory, kv = context.memory, context.settings.kv
        if not kv.host_gib:
            return Outcome.skipped("generator.kv.host_gib is 0")
        if context.surroundings.crowded:
            return Outcome.skipped("the engine's own cache is small beside other work")
        pages = int(kv.host_gib * _GIB) // memory.page_bytes
        figure = f"{pages:,} pages; the engine itself keeps {memory.gpu_pages:,}"
        if pages <= memory.gpu_pages:
            wanted = 2 * memory.gpu_pages * memory.page_bytes / _GIB
            return Outcome.warning(
                f"it holds no more documents than the engine itself: raise generator.kv.host_gib to {wanted:.1f}",
                figure,
            )
        return Outcome.passed(figure)


class ComposedReuse:
    """Asks the engine whether it can compose, and looks up the gate's reports on this model."""

    name = "composed reuse"
    needs = (CachingEngine.name,)

    def __init__(self, gates: GateFolder) -> None:
        self._gates = gates

    async def run(self, context: Context) -> Outcome:
        """Passes also without a passed gate: then every prompt is served exactly."""
        info = await context.engine.running.info()
        if info.kv is None or info.composing is None:
            return Outcome.skipped(info.not_composing or "the engine keeps no KV")
        reports = self._gates.read(info.kv.fingerprint).reports
        if not reports:
            return Outcome.passed("possible; no gate was run, so `auto` composes nothing: `ragtree gate run`")
        found = [
            f"{report.method} {report.share:.0%} {'passes' if report.passed else 'does not pass'} the gate"
            for report in reports
        ]
        return Outcome.passed(f"possible; {', '.join(found)}")
