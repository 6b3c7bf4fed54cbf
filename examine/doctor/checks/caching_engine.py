"""vLLM with RAGTree's connector: whether it serves the user's options, and what it runs on."""

from time import perf_counter

from examine.doctor.checks.plain_engine import PlainEngine
from examine.doctor.context import Context
from examine.doctor.outcome import Outcome


class CachingEngine:
    """Starts the stack's engine, and leaves it running for the checks that follow."""

    name = "vLLM with the cache"
    needs = (PlainEngine.name,)

    async def run(self, context: Context) -> Outcome:
        """Fails with the reason if the connector refuses the model or the options."""
        if not context.settings.kv.enabled:
            return Outcome.skipped("generator.kv.enabled is false")
        began = perf_counter()
        engine = await context.engine.start_caching()
        memory = context.memory = (await engine.info()).kv
        if memory is None:
            return Outcome.failed("generator.engine_args names another KV connector: remove its kv_transfer_config")
        return Outcome.passed(
            f"starts in {perf_counter() - began:.0f} s on {memory.device}; {memory.layout}; "
            f"pages of {memory.page_tokens} tokens, {memory.page_bytes / 1024:.0f} KiB"
        )
