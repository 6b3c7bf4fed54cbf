"""What the connector's tests ask and look at."""

from typing import NamedTuple

from benchmarks.measuring.engines import generate
from benchmarks.measuring.kv_paths import KvPath, random_segment
from generator.engines.vllm_engine import VllmEngine
from protocol.generation import PrefillResult
from protocol.plans import PrefillPlan
from protocol.tiers import Tier

GPU, HOST, DISK = Tier.GPU, Tier.HOST, Tier.DISK
PAGE_TOKENS = 32
segment = random_segment


class Answer(NamedTuple):
    text: str
    prefill: PrefillResult


def Path(segments, namespace=None, first_page=0) -> KvPath:  # noqa: N802
    return KvPath(segments, PAGE_TOKENS, namespace, first_page)


async def ask(engine: VllmEngine, plan: PrefillPlan, max_tokens: int = 6) -> Answer:
    """The greedy answer to a plan, and what its prefill came to."""
    came = await generate(engine, plan, max_tokens)
    return Answer(came.text, came.prefill)


async def held(engine: VllmEngine, tier: Tier) -> set[tuple[str, tuple[str, ...]]]:
    """What a tier holds by its own account: namespaces and paths."""
    return {
        (node.namespace, node.path)
        for report in await engine.residency()
        if report.tier is tier
        for node in report.nodes
    }
