"""Prompts of three documents, each of which has KV of its own behind the system prompt."""

from importlib.util import find_spec

import msgspec
import pytest
from kv_plans import DISK, FIRST, GPU, HOST, SECOND, SYSTEM, THIRD, ask, forget_blocks, kv_path

from examine.measuring.kv_paths import KvPath
from generator.engines.vllm_engine import VllmEngine
from protocol.kv import Orders
from protocol.plans import Donor, PlannedNode, PrefillPlan, Recompute
from protocol.prompts import Prompt
from protocol.tiers import Tier

DONATED = 113 + 70
"""Tokens of the second and the third document."""

_WITH_LAB = pytest.mark.skipif(find_spec("ragtree_lab") is None, reason="the laboratory is not installed")


def of_lab(*methods: str) -> list[object]:
    """Selectors of the laboratory, as parameters of a test that is skipped without it."""
    return [pytest.param(method, marks=_WITH_LAB) for method in methods]


class ComposedPrompts:
    """Three documents, each with KV of its own behind the system prompt, in one ``tier``."""

    def __init__(self, namespace: str, tier: Tier) -> None:
        self.tier = tier
        first = kv_path((SYSTEM, FIRST), namespace)
        second = kv_path((SYSTEM, SECOND), namespace, first.page_count)
        third = kv_path((SYSTEM, THIRD), namespace, first.page_count + second.page_count)
        self.own = [first, second, third]
        self.beside = kv_path((SYSTEM, FIRST, THIRD), namespace, sum(own.page_count for own in self.own))
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

    def plan_behind_another(self, question: str, share: float, kept: Tier) -> PrefillPlan:
        """A plan that composes the second document, and the third one as a prefill in front computes and keeps it."""
        front = zip(self.own[0].keys, self.own[0].segments, self.own[0].pages, strict=True)
        loaded = [
            PlannedNode(key, len(segment.token_ids), self.tier, GPU, pages if self.tier is HOST else None)
            for key, segment, pages in front
        ]
        pages = self.beside.pages[2] if kept is HOST else None
        computed = PlannedNode(self.beside.keys[2], 70, None, kept, pages)
        plan = self.plan(question, share, given=(1,))
        first = PrefillPlan(
            f"{plan.query_id}~first",
            plan.instance,
            plan.namespace,
            Prompt(self.beside.segments),
            nodes=(*loaded, computed),
        )
        nodes = (
            *(msgspec.structs.replace(node, source=GPU, pages=None) for node in plan.nodes[:2]),
            plan.nodes[2],
            msgspec.structs.replace(plan.nodes[3], donor=Donor(computed.key, kept, 27 + 170, pages)),
        )
        return msgspec.structs.replace(plan, nodes=nodes, first=first)

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
