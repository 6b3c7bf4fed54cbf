"""Whether host memory is large enough to be useful."""

from examine.doctor.checks.caching_engine import CachingEngine
from examine.doctor.context import Context
from examine.doctor.outcome import Outcome

_GIB = 1 << 30


class HostSize:
    """Compares ``generator.kv.host_gib`` with the part of the engine's own KV cache that documents may take."""

    name = "size of host memory"
    needs = (CachingEngine.name,)

    async def run(self, context: Context) -> Outcome:
        """Warns if host memory holds no more than the engine itself, because it then adds nothing."""
        memory, kv = context.memory, context.settings.kv
        assert memory is not None
        if not kv.host_gib:
            return Outcome.skipped("generator.kv.host_gib is 0")
        if context.surroundings.crowded:
            return Outcome.skipped("the engine's own cache is small beside other work")
        pages = int(kv.host_gib * _GIB) // memory.page_bytes
        figure = (
            f"{pages * memory.page_tokens:,} tokens; the engine itself keeps {memory.gpu_pages * memory.page_tokens:,}"
        )
        if pages <= memory.gpu_pages:
            wanted = 2 * memory.gpu_pages * memory.page_bytes / _GIB
            return Outcome.warning(
                f"it holds no more documents than the engine itself: raise generator.kv.host_gib to {wanted:.1f}",
                figure,
            )
        return Outcome.passed(figure)
