"""Plans without a controller: handmade orders put KV where a measurement or a test needs it."""

import random
from collections.abc import Sequence
from itertools import accumulate, count
from uuid import uuid4

from cachectl.nodes.keys import path_keys
from protocol.kv import Move, Pages, Paging
from protocol.plans import PlannedNode, PrefillPlan
from protocol.prompts import Prompt, Segment, SegmentKind
from protocol.tiers import Tier

INSTANCE = "generator"
"""An engine's name in plans, unless it has another one."""

QUESTION_TOKENS = 21
# Stamps must rise over all allocations.
_STAMPS = count(1)


def random_segment(key: str, tokens: int, kind: SegmentKind = SegmentKind.DOCUMENT) -> Segment:
    """Return a segment of token ids that every vocabulary has, drawn by ``key``: equal keys give equal segments."""
    draws = random.Random(key)  # noqa: S311 - a repeatable draw
    return Segment(kind, key, tuple(draws.randrange(100, 1000) for _ in range(tokens)))


class KvPath:
    """Consecutive segments in one namespace (by default a new one), with pages of host memory.

    Pages are numbered from ``first_page``, in an arena with pages as ``paging`` says.
    """

    def __init__(
        self, segments: Sequence[Segment], paging: Paging, namespace: str | None = None, first_page: int = 0
    ) -> None:
        self.segments = tuple(segments)
        self.paging = paging
        self.namespace = namespace or uuid4().hex
        self.keys = [key.hex() for key in path_keys(self.namespace, [segment.key for segment in segments])]
        self.pages: list[Pages] = []
        lengths = [len(segment.token_ids) for segment in segments]
        for begin, tokens in zip(accumulate(lengths, initial=0), lengths, strict=False):
            span = paging.page_count(begin, tokens)
            self.pages.append(Pages(tuple(range(first_page, first_page + span)), next(_STAMPS)))
            first_page += span

    @property
    def tokens(self) -> int:
        """Number of tokens of all segments."""
        return sum(len(segment.token_ids) for segment in self.segments)

    @property
    def page_count(self) -> int:
        """Number of pages of all segments."""
        return sum(len(pages.numbers) for pages in self.pages)

    def plan(
        self,
        question: str | Segment,
        sources: Tier | Sequence[Tier | None] | None,
        kept: Tier | Sequence[Tier | None] | None,
        moves: Sequence[Move] = (),
    ) -> PrefillPlan:
        """Make a plan for the path and a question, by default a random one that is drawn by its name.

        ``sources`` and ``kept`` are one tier for all nodes, or one for each.
        """
        nodes = tuple(
            PlannedNode(key, len(part.token_ids), source, keep, pages if Tier.HOST in (source, keep) else None)
            for key, part, source, keep, pages in zip(
                self.keys, self.segments, self._each(sources), self._each(kept), self.pages, strict=True
            )
        )
        if isinstance(question, str):
            question = random_segment(question, QUESTION_TOKENS, SegmentKind.QUESTION)
        prompt = Prompt((*self.segments, question))
        return PrefillPlan(uuid4().hex, INSTANCE, self.namespace, prompt, 0.0, nodes, tuple(moves))

    def moves(self, source: Tier, target: Tier | None, evict: bool = True) -> tuple[Move, ...]:
        """Make orders that move all nodes, the last one first."""
        instance = INSTANCE if source is Tier.GPU else None
        nodes = list(zip(self.keys, self.segments, self.pages, strict=True))
        return tuple(
            Move(
                key,
                len(part.token_ids),
                source,
                target,
                instance,
                evict,
                pages if Tier.HOST in (source, target) else None,
            )
            for key, part, pages in reversed(nodes)
        )

    def _each(self, given: Tier | Sequence[Tier | None] | None) -> Sequence[Tier | None]:
        return [given] * len(self.keys) if given is None or isinstance(given, Tier) else given
