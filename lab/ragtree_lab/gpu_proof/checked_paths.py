"""The paths of documents that checks put into one tier and ask about."""

from typing import Protocol

from examine.measuring.kv_paths import KvPath, random_segment
from protocol.kv import LostCopy, Orders, Paging
from protocol.plans import PrefillPlan
from protocol.prompts import SegmentKind
from protocol.tiers import Tier
from ragtree_lab.gpu_proof.answers import Answer

_MOVES = {
    Tier.GPU: [],
    Tier.HOST: [(Tier.GPU, Tier.HOST)],
    Tier.DISK: [(Tier.GPU, Tier.HOST), (Tier.HOST, Tier.DISK)],
}


class AskedEngine(Protocol):
    """An engine in this process or in another one."""

    async def ask(self, plan: PrefillPlan) -> Answer:
        """The greedy answer to a plan."""

    async def carry_out(self, orders: Orders) -> tuple[LostCopy, ...]:
        """Carry out orders; what could not be copied is returned."""


def checked_path(name: str, paging: Paging, documents: tuple[int, ...] = (520, 150), first_page: int = 0) -> KvPath:
    """A system prompt and documents of so many tokens. With the default, none ends with a block."""
    segments = [random_segment("system", 27, SegmentKind.SYSTEM)]
    segments += [random_segment(f"{name} {number}", tokens) for number, tokens in enumerate(documents)]
    return KvPath(segments, paging, first_page=first_page)


async def put(engine: AskedEngine, path: KvPath, tier: Tier) -> None:
    """Put a path's KV into one tier and no other, and wait until it is there. Raises ValueError if it is not."""
    await engine.ask(path.plan("to compute it", None, Tier.GPU))
    for source, target in _MOVES[tier]:
        if lost := await engine.carry_out(Orders(path.moves(source, target))):
            raise ValueError(f"{len(lost)} copies could not be made in {target}")
    if tier is not Tier.GPU:
        await forget_blocks(engine, path)


async def forget_blocks(engine: AskedEngine, path: KvPath) -> None:
    """Delete a path from the engine's blocks, and from no other tier."""
    await engine.carry_out(Orders(forget=((path.namespace, path.segments[0].key),), tiers=(Tier.GPU,)))
