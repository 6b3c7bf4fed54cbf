"""Several controllers as one: ``protocol.parts.Controller`` over any number of shards."""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import NamedTuple, TypeVar

from msgspec.structs import replace

from cachectl.sharding.controller_shard import ControllerShard, shard_of
from protocol.cache import CachePath, DocumentDeletion, TierStats, TreeNode, TreeView
from protocol.errors import Unavailable, UnknownNode, UnknownPlan
from protocol.generation import ServedAdapter
from protocol.kv import KvRead, LostCopy
from protocol.parts import Controller
from protocol.plans import (
    AdmissionRequest,
    CompletionReport,
    ControllerStats,
    DocumentOrder,
    InstanceLoad,
    NotWarmed,
    PrefillPlan,
    SpeculationDecision,
)
from protocol.tiers import Tier

T = TypeVar("T")
R = TypeVar("R", None, NotWarmed)
"""What a shard returns instead of a plan."""


class _Holder(NamedTuple):
    """The shard of a plan, and the instance that runs it; empty until the plan is there."""

    shard: int
    instance: str = ""


class _Guess(NamedTuple):
    """A query's speculation: its shard and its plan."""

    shard: int
    plan_id: str


class ShardedController:
    """Sends each query to the shard that owns its first document, and all else to every shard.

    Callers see plain namespaces; shards see their own (``ControllerShard.namespace``). A query's calls all come to one
    object of this class, which remembers the shard of each plan until its completion.
    """

    def __init__(self, shards: Sequence[Controller]) -> None:
        self._shards = [(ControllerShard(number, len(shards)), part) for number, part in enumerate(shards)]
        self._of_plan: dict[str, _Holder] = {}
        # The last speculation of each query, and the query of each speculation's plan.
        self._guesses: dict[str, _Guess] = {}
        self._guessed_for: dict[str, str] = {}

    async def on_candidates(self, query_id: str, documents: Sequence[str], final: bool) -> SpeculationDecision:
        """Decide about a speculation. One that runs at another shard than these documents' ends there."""
        owner = self._owner(documents)
        guess = self._guesses.get(query_id)
        if guess is None or guess.shard == owner:
            return await self._at(owner).on_candidates(query_id, documents, final)
        ended = await self._end_guess(query_id, documents, final)
        if not final:
            decision = await self._at(owner).on_candidates(query_id, documents, final)
            if decision is SpeculationDecision.START:
                return decision
        return SpeculationDecision.DROP if ended else SpeculationDecision.WAIT

    async def speculate(self, query_id: str, documents: Sequence[str], request: AdmissionRequest) -> PrefillPlan | None:
        """Lease a plan for a speculation, at the shard of its documents."""
        owner = self._owner(documents)
        plan = await self._tried(owner, request, lambda at, mine: at.speculate(query_id, documents, mine))
        if plan is not None:
            self._guesses[query_id] = _Guess(owner, request.query_id)
            self._guessed_for[request.query_id] = query_id
        return plan

    async def admit(self, request: AdmissionRequest) -> PrefillPlan:
        """Wait for the query's turn at its shard. Its speculation ends, wherever it runs."""
        owner = self._owner_of(request)
        await self._end_guess_elsewhere(request.query_id, owner)
        self._of_plan[request.query_id] = _Holder(owner)
        plan = await self._at(owner).admit(self._for(owner, request))
        self._granted(request.query_id, owner, plan)
        return plan

    async def prefilled(self, query_id: str, lost: Sequence[LostCopy] = (), reads: Sequence[KvRead] = ()) -> None:
        """Record that a plan has its first token. Raises UnknownPlan.

        An engine reports lost copies of any shard's nodes with its next plan, so every shard hears of them.
        """
        holder = self._of_plan.get(query_id)
        if holder is None:
            raise UnknownPlan(f"query {query_id!r} holds no plan")
        await self._at(holder.shard).prefilled(query_id, lost, reads)
        await self._lose_elsewhere(holder, lost)

    async def complete(self, report: CompletionReport) -> None:
        """Release a plan's lease at its shard, and end the query's speculation. Raises UnknownPlan."""
        holder = self._of_plan.pop(report.query_id, None)
        guessed_for = self._guessed_for.pop(report.query_id, "")
        guess = self._guesses.get(guessed_for)
        if guess is not None and guess.plan_id == report.query_id:
            del self._guesses[guessed_for]
        try:
            if holder is None:
                raise UnknownPlan(f"query {report.query_id!r} holds no plan and waits for none")
            await self._at(holder.shard).complete(report)
            await self._lose_elsewhere(holder, report.lost)
        finally:
            await self._end_guess_elsewhere(report.query_id, holder.shard if holder is not None else None)

    async def lose(self, instance: str, lost: Sequence[LostCopy]) -> None:
        """Record copies that an instance has lost, in every shard."""
        await self._everywhere(lambda _, part: part.lose(instance, lost))

    async def warm(self, request: AdmissionRequest, evicting: bool = True) -> PrefillPlan | NotWarmed:
        """Lease a plan on an instance that is idle as far as the prompt's shard knows."""
        return await self._tried(self._owner_of(request), request, lambda at, mine: at.warm(mine, evicting))

    async def pin(self, path: CachePath, pinned: bool = True) -> None:
        """Pin a path wherever it is: a system prompt is in every shard. Raises UnknownNode or PinRefused."""

        async def pin(shard: ControllerShard, part: Controller) -> bool:
            try:
                await part.pin(replace(path, namespace=shard.namespace(path.namespace)), pinned)
            except UnknownNode:
                return False
            return True

        if not any(await self._everywhere(pin)):
            raise UnknownNode(f"no shard has a path of these {len(path.contents)} documents")

    async def delete_document(self, deletion: DocumentDeletion) -> int:
        """Delete a document's KV in every shard. Raises what a shard raises; the others have deleted theirs."""

        async def delete(shard: ControllerShard, part: Controller) -> int:
            plain = deletion.namespace
            own = None if plain is None else shard.namespace(plain)
            return await part.delete_document(replace(deletion, namespace=own))

        return sum(await self._everywhere(delete))

    async def load_adapter(self, name: str, source: str) -> str:
        """Have the first shard see to it that all instances serve an adapter. The others leave that to it."""
        return await self._at(0).load_adapter(name, source)

    async def unload_adapter(self, name: str) -> None:
        """Have the first shard see to it that no instance serves an adapter any more."""
        await self._at(0).unload_adapter(name)

    async def served_adapters(self) -> dict[str, ServedAdapter]:
        """The adapters that all instances serve."""
        return await self._at(0).served_adapters()

    async def clear(self) -> int:
        """Drop everything that no plan uses."""
        return sum(await self._everywhere(lambda _, part: part.clear()))

    async def persist(self) -> None:
        """Copy all cached KV to disk, as far as there is room."""
        await self._everywhere(lambda _, part: part.persist())

    async def tree(self, depth: int, limit: int) -> TreeView:
        """Return the trees of all shards beside each other, with an equal part of ``limit`` from each."""
        each = -(-limit // len(self._shards)) if limit > 0 else limit
        views = await self._everywhere(lambda _, part: part.tree(depth, each))
        return merged_tree(views, self._shards[0][0].plain)

    async def stats(self) -> ControllerStats:
        """Return the sums over all shards."""
        return merged_stats(await self._everywhere(lambda _, part: part.stats()))

    async def ready(self) -> None:
        """Return when every shard can admit queries."""
        await self._everywhere(lambda _, part: part.ready())

    def _at(self, shard: int) -> Controller:
        return self._shards[shard][1]

    def _for(self, shard: int, request: AdmissionRequest) -> AdmissionRequest:
        return replace(request, namespace=self._shards[shard][0].namespace(request.namespace))

    def _owner(self, documents: Sequence[str]) -> int:
        return shard_of(documents[0] if documents else "", len(self._shards))

    def _owner_of(self, request: AdmissionRequest) -> int:
        """The shard of the document that will come first. In cached-first order, only the shard itself could tell."""
        documents = [document.key for document in request.prompt.documents]
        return self._owner([min(documents)] if documents and request.order is DocumentOrder.CANONICAL else documents)

    async def _end_guess(self, query_id: str, documents: Sequence[str], final: bool) -> bool:
        """End the speculation of a query, whose documents are another shard's now. Returns whether one may have run.

        A shard that is away has ended with its speculations, and hinders no query of the others.
        """
        guess = self._guesses.pop(query_id)
        with suppress(Unavailable):
            return await self._at(guess.shard).on_candidates(query_id, documents, final) is not SpeculationDecision.WAIT
        return True

    async def _lose_elsewhere(self, holder: _Holder, lost: Sequence[LostCopy]) -> None:
        """Tell the other shards what an instance has lost. One that is away asks the tiers when it starts again."""
        if not lost or not holder.instance:
            return
        for shard, part in self._shards:
            if shard.number != holder.shard:
                with suppress(Unavailable):
                    await part.lose(holder.instance, lost)

    async def _end_guess_elsewhere(self, query_id: str, owner: int | None) -> None:
        """End the speculation of a query whose plan is another shard's. The plan's own shard does so by itself."""
        guess = self._guesses.get(query_id)
        if guess is None:
            return
        if guess.shard == owner:
            del self._guesses[query_id]
        else:
            await self._end_guess(query_id, (), final=True)

    def _granted(self, plan_id: str, owner: int, plan: PrefillPlan) -> None:
        """Note a plan's instance, unless the plan was completed while its admission was on its way."""
        if plan_id in self._of_plan:
            self._of_plan[plan_id] = _Holder(owner, plan.instance)

    async def _tried(
        self,
        owner: int,
        request: AdmissionRequest,
        ask: Callable[[Controller, AdmissionRequest], Awaitable[PrefillPlan | R]],
    ) -> PrefillPlan | R:
        """A plan that a shard may or may not grant."""
        self._of_plan[request.query_id] = _Holder(owner)
        plan = await ask(self._at(owner), self._for(owner, request))
        if isinstance(plan, PrefillPlan):
            self._granted(request.query_id, owner, plan)
        else:
            del self._of_plan[request.query_id]
        return plan

    async def _everywhere(self, call: Callable[[ControllerShard, Controller], Awaitable[T]]) -> list[T]:
        """Every shard's answer. All are asked; then the first error is raised, if any."""
        answers = await asyncio.gather(*(call(*each) for each in self._shards), return_exceptions=True)
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
        return [answer for answer in answers if not isinstance(answer, BaseException)]


_NOT_SUMS = {"policy", "largest_overtake", "tiers", "planned_from", "instances"}
_SUMS = [field for field in ControllerStats.__struct_fields__ if field not in _NOT_SUMS]
_TIER_SUMS = ("capacity_tokens", "used_tokens", "pinned_tokens", "nodes", "evictions")


def merged_stats(parts: Sequence[ControllerStats]) -> ControllerStats:
    """Add up the counters, the tiers and the load of each instance."""
    planned_from: Counter[Tier] = sum((Counter(part.planned_from) for part in parts), Counter())
    return replace(
        parts[0],
        **_sums(parts, _SUMS),
        largest_overtake=max(part.largest_overtake for part in parts),
        tiers=_merged_tiers([tier for part in parts for tier in part.tiers]),
        planned_from={tier: planned_from[tier] for tier in Tier},
        instances=_merged_loads([load for part in parts for load in part.instances]),
    )


def merged_tree(parts: Sequence[TreeView], plain: Callable[[str], str]) -> TreeView:
    """Put the trees beside each other, most used nodes first. ``plain`` takes the shard off a namespace."""
    namespaces: dict[str, list[TreeNode]] = defaultdict(list)
    for part in parts:
        for namespace, nodes in part.namespaces.items():
            namespaces[plain(namespace)] += nodes
    return TreeView(
        {name: tuple(sorted(nodes, key=_by_use)) for name, nodes in sorted(namespaces.items())},
        sum(part.nodes for part in parts),
        _merged_tiers([tier for part in parts for tier in part.tiers]),
    )


def _merged_tiers(tiers: Sequence[TierStats]) -> tuple[TierStats, ...]:
    by_place: dict[tuple[Tier, str], list[TierStats]] = defaultdict(list)
    for tier in tiers:
        by_place[tier.tier, tier.place].append(tier)
    return tuple(replace(parts[0], **_sums(parts, _TIER_SUMS)) for parts in by_place.values())


def _merged_loads(loads: Sequence[InstanceLoad]) -> tuple[InstanceLoad, ...]:
    by_instance: dict[str, list[InstanceLoad]] = defaultdict(list)
    for load in loads:
        by_instance[load.instance].append(load)
    return tuple(
        InstanceLoad(
            instance,
            sum(part.running for part in parts),
            sum(part.queued for part in parts),
            all(part.retired for part in parts),
            any(part.kv_generator for part in parts),
            any(part.refused for part in parts),
        )
        for instance, parts in by_instance.items()
    )


def _by_use(node: TreeNode) -> tuple[float, str]:
    return -node.frequency, node.content


def _sums(parts: Sequence[object], fields: Sequence[str]) -> dict[str, int]:
    return {field: sum(getattr(part, field) for part in parts) for field in fields}
