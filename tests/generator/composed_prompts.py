"""Prompts of three documents, each of which has KV of its own behind the system prompt."""

import msgspec
from kv_plans import DISK, FIRST, GPU, HOST, SECOND, SYSTEM, THIRD, ask, forget_blocks, kv_path

from benchmarks.measuring.kv_paths import KvPath
from generator.engines.vllm_engine import VllmEngine
from protocol.kv import Orders
from protocol.plans import Donor, PlannedNode, PrefillPlan, Recompute
from protocol.tiers import Tier

DONATED = 113 + 70
"""Tokens of the second and the third document."""


class ComposedPrompts:
    """Three documents, each with KV of its own behind the system prompt, in one ``tier``."""

    def __init__(self, namespace: str, tier: Tier) -> None:
        self.tier = tier
        first = kv_path((SYSTEM, FIRST), namespace)
        second = kv_path((SYSTEM, SECOND), namespace, first.page_count)
        third = kv_path((SYSTEM, THIRD), namespace, first.page_count + second.page_count)
        self.own = [first, second, third]
        self.whole = kv_path((SYSTEM, FIRST, SECOND, THIRD), namespace)

    def donor(self, path: KvPath) -> Donor:
        """The document of a path as a donor."""
        return Donor(path.keys[1], self.tier, 27, path.pages[1] if self.tier is HOST else None)

    def plan(
        self,
        question: str,
        share: float,
        method: str = "query",
        given: tuple[int, ...] = (1, 2),
        bound: float | None = None,
    ) -> PrefillPlan:
        """A plan that loads the first document, and composes those of the others that are ``given``."""
        plan = self.whole.plan(question, None, None)
        front = zip(plan.nodes[:2], self.own[0].pages, strict=True)
        nodes: list[PlannedNode] = [
            msgspec.structs.replace(node, source=self.tier, pages=pages if self.tier is HOST else None)
            for node, pages in front
        ]
        for number in (1, 2):
            donor = self.donor(self.own[number]) if number in given else None
            nodes.append(msgspec.structs.replace(plan.nodes[number + 1], donor=donor))
        return msgspec.structs.replace(plan, nodes=tuple(nodes), recompute=Recompute(method, share, bound))

    async def put(self, engine: VllmEngine) -> None:
        """Compute the documents, and put them into the tier and no other."""
        for own in self.own:
            await ask(engine, own.plan("to compute it", None, GPU), max_tokens=1)
        first, second, third = self.own
        for source, target in {HOST: [(GPU, HOST)], DISK: [(GPU, HOST), (HOST, DISK)]}.get(self.tier, []):
            # The system prompt is a node of all three paths. It goes last, with the first one.
            moves = (second.moves(source, target)[0], third.moves(source, target)[0], *first.moves(source, target))
            assert await engine.carry_out(Orders(moves)) == ()
        if self.tier is not GPU:
            await forget_blocks(engine, first)
