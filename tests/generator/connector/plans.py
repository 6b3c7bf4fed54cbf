"""Plans made by hand, for an engine without a controller."""

import random
from collections.abc import Sequence
from contextlib import aclosing
from itertools import accumulate, count
from typing import NamedTuple
from uuid import uuid4

from cachectl.node import path_keys
from generator.vllm_engine import VllmEngine
from protocol.generation import PrefillResult, Sampling
from protocol.kv import Move, Pages, pages_spanned
from protocol.plans import PlannedNode, PrefillPlan
from protocol.prompts import Prompt, Segment, SegmentKind
from protocol.tiers import Tier

GPU, HOST, DISK = Tier.GPU, Tier.HOST, Tier.DISK
PAGE_TOKENS = 32
INSTANCE = "generator"
# Stamps rise, whoever hands pages out.
_STAMPS = count(1)


def segment(key: str, tokens: int, kind: SegmentKind = SegmentKind.DOCUMENT) -> Segment:
    """A segment of tokens that its key decides."""
    draws = random.Random(key)
    return Segment(kind, key, tuple(draws.randrange(100, 20_000) for _ in range(tokens)))


class Answer(NamedTuple):
    text: str
    prefill: PrefillResult


class Path:
    """Segments behind each other in one tenant's namespace, and the pages of host memory that they are given."""

    def __init__(self, segments: Sequence[Segment], namespace: str | None = None, first_page: int = 0):
        self.segments = tuple(segments)
        self.namespace = namespace or uuid4().hex
        self.keys = [key.hex() for key in path_keys(self.namespace, [segment.key for segment in segments])]
        self.pages = []
        begins = [0, *accumulate(len(segment.token_ids) for segment in segments)]
        for begin, segment_ in zip(begins, segments, strict=False):
            span = len(pages_spanned(begin, len(segment_.token_ids), PAGE_TOKENS))
            self.pages.append(Pages(tuple(range(first_page, first_page + span)), next(_STAMPS)))
            first_page += span

    @property
    def tokens(self) -> int:
        return sum(len(segment.token_ids) for segment in self.segments)

    def plan(self, question: str, sources, kept, moves: Sequence[Move] = (), spare: Sequence[str] = ()) -> PrefillPlan:
        """A plan; ``sources`` and ``kept`` are a tier for all nodes, or one for each."""
        sources, kept = (
            given if isinstance(given, list) else [given] * len(self.keys) for given in (sources, kept)
        )
        nodes = tuple(
            PlannedNode(key, len(part.token_ids), source, keep, pages if HOST in (source, keep) else None)
            for key, part, source, keep, pages in zip(self.keys, self.segments, sources, kept, self.pages, strict=True)
        )
        prompt = Prompt((*self.segments, segment(question, 21, SegmentKind.QUESTION)))
        return PrefillPlan(uuid4().hex, INSTANCE, self.namespace, prompt, 0.0, nodes, tuple(moves), tuple(spare))

    def moves(self, source: Tier, target: Tier | None, evict: bool = True) -> tuple[Move, ...]:
        """Orders that move all nodes, the last first."""
        return tuple(
            Move(
                key,
                len(part.token_ids),
                source,
                target,
                INSTANCE if source is GPU else None,
                evict,
                pages if HOST in (source, target) else None,
            )
            for key, part, pages in reversed(list(zip(self.keys, self.segments, self.pages, strict=True)))
        )


async def ask(engine: VllmEngine, plan: PrefillPlan, max_tokens: int = 6) -> Answer:
    """The greedy answer to a plan, and what its prefill came to."""
    text, prefill = "", None
    async with aclosing(engine.stream(plan, Sampling(max_tokens=max_tokens))) as steps:
        async for step in steps:
            prefill = prefill or step.prefill
            text += step.text
    assert prefill is not None
    return Answer(text, prefill)


async def held(engine: VllmEngine, tier: Tier) -> set[tuple[str, tuple[str, ...]]]:
    """What a tier holds by its own account: namespaces and paths."""
    return {
        (node.namespace, node.path)
        for report in await engine.residency()
        if report.tier is tier
        for node in report.nodes
    }
