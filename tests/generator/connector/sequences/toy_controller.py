"""A controller that plans at random, within the rules of the real one, and knows what every shared tier should hold.

Rules: a copy in a shared tier is used by other instances only after its writer has confirmed it. What is reported as
lost, or may have been written by a plan that ended early, is deleted again.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate, count
from random import Random
from typing import NamedTuple

from plan_messages import plan_message
from toy_engine import ToyEngine

from cachectl.nodes.keys import path_keys
from generator.connector.messages import EngineReport, RequestMessage
from protocol.kv import LostCopy, Move, Orders, Pages
from protocol.plans import PlannedNode
from protocol.tiers import Tier

NAMESPACE = "tenant"
SHARED = (Tier.HOST, Tier.DISK)


@dataclass(eq=False)
class SharedCopy:
    """A copy in a shared tier. ``writer`` is the instance that has not confirmed it yet, or None.

    A ``reserved`` copy is written by a plan without its first token: it does not exist before.
    """

    tokens: int
    path: tuple[str, ...]
    pages: Pages | None
    writer: int | None
    reserved: bool = False


class Written(NamedTuple):
    """A copy that an instance writes. It may have been removed meanwhile, and another one made in its place."""

    key: str
    tier: Tier
    copy: SharedCopy


@dataclass
class Plan:
    """A request that runs: its prompt, the nodes that it keeps in the GPU, and the copies that it writes."""

    instance: int
    prompt: list[int]
    max_tokens: int
    gpu: list[str]
    written: list[Written]
    moves: list[Move]
    prefilled: bool = False


class SentOrders(NamedTuple):
    """Orders that an instance has not carried out yet, and the copies that they write or check."""

    instance: int
    orders: Orders
    written: Sequence[Written]


@dataclass
class ToyController:
    """Plans for ``engines``, which share ``host_pages`` pages of host memory. ``documents`` are lists of token ids."""

    engines: list[ToyEngine]
    documents: list[list[int]]
    host_pages: int
    gpu: list[set[str]] = field(default_factory=list)
    shared: dict[tuple[str, Tier], SharedCopy] = field(default_factory=dict)
    plans: dict[str, Plan] = field(default_factory=dict)
    ended: dict[str, Plan] = field(default_factory=dict)
    _orders: dict[str, SentOrders] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.gpu = [set() for _ in self.engines]
        self._free_pages = list(range(self.host_pages))
        self._stamps = count(1)
        self._names = count()

    # Requests

    def ask(self, instance: int, chosen: Sequence[int], random: Random, max_tokens: int, speculative: bool) -> None:
        """Send a request for a question behind some documents."""
        contents = [f"d{index}" for index in chosen]
        keys = [key.hex() for key in path_keys(NAMESPACE, contents)]
        lengths = [len(self.documents[index]) for index in chosen]
        starts = list(accumulate(lengths, initial=0))
        plan = Plan(instance, [], max_tokens, [], [], [])
        nodes = []
        usable = True
        for depth, (key, tokens) in enumerate(zip(keys, lengths, strict=True)):
            found = self._sources(instance, key) if usable else []
            # Mostly from below the GPU, where loads can fail.
            source = (
                random.choice([*found, *(tier for tier in found if tier in SHARED), *found, None]) if found else None
            )
            usable = source is not None
            target = random.choice([None, Tier.GPU, Tier.HOST, Tier.HOST, Tier.DISK])
            if target in SHARED and (source is not None or (key, target) in self.shared):
                target = None
            pages = self.shared[key, Tier.HOST].pages if source is Tier.HOST else None
            if target is Tier.HOST:
                pages = self._allocate(starts[depth], tokens, instance, plan.moves, random)
                target = target if pages is not None else None
            if target in SHARED:
                plan.written.append(self._reserve(key, target, tokens, tuple(contents[: depth + 1]), pages, instance))
                plan.written[-1].copy.reserved = True
            elif target is Tier.GPU:
                plan.gpu.append(key)
            nodes.append(PlannedNode(key, tokens, source, target, pages))
        question = [random.randrange(90) for _ in range(random.randint(1, 6))]
        plan.prompt = [token for index in chosen for token in self.documents[index]] + question
        name = f"q{next(self._names)}"
        message = plan_message(name, NAMESPACE, contents, nodes, moves=tuple(plan.moves), speculative=speculative)
        self.plans[name] = plan
        self.engines[instance].send(message, plan.prompt, max_tokens)

    def abort(self, name: str) -> None:
        """Abort a request. What it may have written to shared tiers is deleted, unless its first token is known."""
        plan = self.plans[name]
        self.engines[plan.instance].abort(name)
        self.collect(plan.instance)
        if name in self.plans:
            self._end(name)

    def collect(self, instance: int) -> None:
        """Take an engine's reports."""
        engine = self.engines[instance]
        reports, engine.connector.reports = engine.connector.reports, []
        for report in reports:
            self._take(instance, report)
        for name in [name for name, plan in self.plans.items() if plan.instance == instance]:
            if name in engine.finished:
                self._end(name)

    # Orders

    def order(self, instance: int, moves: Sequence[Move], written: Sequence[Written] = ()) -> None:
        """Send moves outside of any plan, which write these copies or check that they are there."""
        self._send(instance, Orders(tuple(moves)), written)

    def forget(self, content: str) -> None:
        """Delete a document from all instances and tiers."""
        for key, tier in [key for key, copy in self.shared.items() if content in copy.path]:
            self._remove(key, tier)
        for instance in range(len(self.engines)):
            self._send(instance, Orders(forget=((NAMESPACE, content),)), ())

    def check(self, instance: int) -> None:
        """Ask an instance which of the copies it writes are there."""
        mine = [Written(*place, copy) for place, copy in self.shared.items() if copy.writer == instance]
        asked = [written.copy for sent in self._orders.values() for written in sent.written]
        mine = [written for written in mine if not written.copy.reserved and written.copy not in asked]
        moves = [Move(key, copy.tokens, tier, tier, None, False, copy.pages) for key, tier, copy in mine]
        if moves:
            self.order(instance, moves, mine)

    def move(self, instance: int, random: Random) -> None:
        """Order a random move of a copy that the instance can use."""
        usable = [(key, tier) for key, tier in self.shared if tier in self._sources(instance, key)]
        usable += [(key, Tier.GPU) for key in sorted(self.gpu[instance])]
        if not usable:
            return
        key, source = random.choice(usable)
        known = next((copy for (other, _), copy in self.shared.items() if other == key), None)
        target = random.choice([None, *(tier for tier in SHARED if tier is not source)])
        if source is Tier.GPU and known is None:
            target = None
        if target is not None and (key, target) in self.shared:
            target = None
        evict = target is None or random.random() < 0.5
        pages = self.shared[key, Tier.HOST].pages if source is Tier.HOST else None
        moves: list[Move] = []
        if target is Tier.HOST:
            assert known is not None
            start = sum(len(self.documents[int(name[1:])]) for name in known.path[:-1])
            pages = self._allocate(start, known.tokens, instance, moves, random)
            if pages is None or (source in SHARED and (key, source) not in self.shared):
                self._free_pages += pages.numbers if pages is not None else ()
                if moves:
                    # What made room is no longer known here, so it has to go.
                    self.order(instance, moves)
                return
        written: list[Written] = []
        if target is not None:
            assert known is not None
            written = [self._reserve(key, target, known.tokens, known.path, pages, instance)]
        tokens = known.tokens if known is not None else 1
        owner = str(instance) if source is Tier.GPU else None
        moves.append(Move(key, tokens, source, target, owner, evict, pages))
        if evict and source is Tier.GPU:
            self.gpu[instance].discard(key)
        elif evict:
            self._remove(key, source, drop=False)
        self.order(instance, moves, written)

    def restart(self, instance: int, engine: ToyEngine) -> None:
        """Replace an engine. The new one carries out the orders that the old one has not."""
        self.gpu[instance] = set()
        self.engines[instance] = engine
        open_orders = {name: sent for name, sent in self._orders.items() if sent.instance == instance}
        for name, sent in open_orders.items():
            del self._orders[name]
            self._send(instance, sent.orders, sent.written)
        for name, plan in [(name, plan) for name, plan in self.plans.items() if plan.instance == instance]:
            # Nobody knows whether the old engine has carried out the plan's moves.
            self.order(instance, plan.moves)
            self._end(name)

    @property
    def settled(self) -> bool:
        """Whether every copy is confirmed and every order carried out."""
        return not self._orders and all(copy.writer is None for copy in self.shared.values())

    def _send(self, instance: int, orders: Orders, written: Sequence[Written]) -> None:
        name = f"o{next(self._names)}"
        self._orders[name] = SentOrders(instance, orders, written)
        self.engines[instance].send(RequestMessage(name, orders=orders), [1], 1)

    def _sources(self, instance: int, key: str) -> list[Tier]:
        found = [Tier.GPU] if key in self.gpu[instance] else []
        for tier in SHARED:
            copy = self.shared.get((key, tier))
            if copy is not None and copy.writer in (None, instance) and not copy.reserved:
                found.append(tier)
        return found

    def _allocate(self, start: int, tokens: int, instance: int, moves: list[Move], random: Random) -> Pages | None:
        wanted = self.engines[0].paging.page_count(start, tokens)
        while len(self._free_pages) < wanted:
            usable = [key for key, tier in self.shared if tier is Tier.HOST and tier in self._sources(instance, key)]
            if not usable:
                return None
            key = random.choice(usable)
            copy = self.shared[key, Tier.HOST]
            moves.append(Move(key, copy.tokens, Tier.HOST, None, None, True, copy.pages))
            self._remove(key, Tier.HOST, drop=False)
        numbers = tuple(self._free_pages.pop(0) for _ in range(wanted))
        return Pages(numbers, next(self._stamps))

    def _reserve(
        self, key: str, tier: Tier, tokens: int, path: tuple[str, ...], pages: Pages | None, instance: int
    ) -> Written:
        copy = SharedCopy(tokens, path, pages if tier is Tier.HOST else None, instance)
        self.shared[key, tier] = copy
        return Written(key, tier, copy)

    def _is_there(self, written: Written) -> bool:
        return self.shared.get((written.key, written.tier)) is written.copy

    def _remove(self, key: str, tier: Tier, drop: bool = True) -> None:
        copy = self.shared.pop((key, tier))
        if copy.pages is not None:
            self._free_pages += copy.pages.numbers
        if drop:
            # The writer deletes what it may still be writing, behind the write.
            instance = copy.writer if copy.writer is not None else 0
            self.order(instance, [Move(key, copy.tokens, tier, None, None, True, copy.pages)])

    def _end(self, name: str) -> None:
        plan = self.ended[name] = self.plans.pop(name)
        if not plan.prefilled:
            for written in plan.written:
                if self._is_there(written):
                    self._remove(written.key, written.tier)

    def _take(self, instance: int, report: EngineReport) -> None:
        for name, prefilled in report.prefilled.items():
            plan = self.plans.get(name)
            if plan is not None and prefilled.reached is None:
                plan.prefilled = True
                self.gpu[instance].update(plan.gpu)
                for written in plan.written:
                    written.copy.reserved = False
        for name, lost in report.carried_out.items():
            if name in self._orders:
                written = self._orders.pop(name).written
            elif name in self.plans:
                written = self.plans[name].written
            else:
                # Nobody listens to a plan that has ended. Its copies are checked.
                continue
            self._lose(instance, lost)
            for confirmed in written:
                confirmed.copy.writer = None
        self._lose(instance, report.lost)

    def _lose(self, instance: int, lost: Sequence[LostCopy]) -> None:
        for key, tier in ((copy.node, copy.tier) for copy in lost):
            if tier is Tier.GPU:
                self.gpu[instance].discard(key)
            elif tier in self._sources(instance, key):
                self._remove(key, tier)
