"""Plans that put KV where a test needs it, and what a real engine answers to them."""

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from examine.measuring.engines import generate
from examine.measuring.kv_paths import KvPath, random_segment
from generator.engines.vllm_engine import VllmEngine
from protocol.generation import PrefillResult, Sampling
from protocol.kv import Orders, Paging
from protocol.plans import PrefillPlan
from protocol.prompts import Segment, SegmentKind
from protocol.tiers import Tier

GPU, HOST, DISK = Tier.GPU, Tier.HOST, Tier.DISK
PAGE_TOKENS = 32
segment = random_segment

SYSTEM = segment("system", 27, SegmentKind.SYSTEM)
FIRST, SECOND, THIRD = segment("first", 170), segment("second", 113), segment("third", 70)


class Answer(NamedTuple):
    """An answer's tokens, and the result of its prefill."""

    tokens: tuple[int, ...]
    prefill: PrefillResult


def kv_path(segments: Sequence[Segment], namespace: str | None = None, first_page: int = 0) -> KvPath:
    """Consecutive segments, in a new namespace by default."""
    return KvPath(segments, Paging(PAGE_TOKENS), namespace, first_page)


async def ask(engine: VllmEngine, plan: PrefillPlan, max_tokens: int = 6) -> Answer:
    """The greedy answer to a plan."""
    generation = await generate(engine, plan, Sampling(max_tokens, logprobs=True))
    return Answer(tuple(token.token_id for token in generation.logprobs), generation.prefill)


async def uncached_tokens(engine: VllmEngine, path: KvPath, question: str) -> tuple[int, ...]:
    """The answer without any cache: under a new namespace, in which nothing is cached."""
    return (await ask(engine, kv_path(path.segments).plan(question, None, None))).tokens


async def held(engine: VllmEngine, tier: Tier) -> set[tuple[str, tuple[str, ...]]]:
    """The namespaces and paths of the nodes that a tier holds."""
    return {
        (node.namespace, node.path)
        for report in await engine.residency()
        if report.tier is tier
        for node in report.nodes
    }


async def until_held(engine: VllmEngine, path: KvPath, tier: Tier) -> None:
    """Wait until a tier holds a path. A copy that a plan saves is written after its answer, in asynchronous steps."""
    keys = [segment.key for segment in path.segments]
    while (path.namespace, tuple(keys)) not in await held(engine, tier):
        await asyncio.sleep(0.01)


async def forget_blocks(engine: VllmEngine, path: KvPath) -> None:
    """Delete a path that begins with SYSTEM from the engine's blocks, and from no other tier."""
    assert await engine.carry_out(Orders(forget=((path.namespace, "system"),), tiers=(GPU,))) == ()


async def put(engine: VllmEngine, path: KvPath, tier: Tier) -> None:
    """Put a path's KV into one tier and no other."""
    await ask(engine, path.plan("to compute it", None, GPU), max_tokens=1)
    if tier is not GPU:
        assert await engine.carry_out(Orders(path.moves(GPU, HOST))) == ()
    if tier is DISK:
        assert await engine.carry_out(Orders(path.moves(HOST, DISK))) == ()
    if tier is not GPU:
        await forget_blocks(engine, path)
