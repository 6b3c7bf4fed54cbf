"""Fake instances that a live controller follows."""

import asyncio

import msgspec

from protocol.errors import Conflict, UnknownModel
from protocol.generation import EngineInfo, GenerationStep, PrefillCost, PrefillResult, ServedAdapter
from protocol.kv import HeldNode, KvMemory, LostCopy, Orders, Pages, ResidencyReport
from protocol.tiers import Tier

TOKENS = 10
MEMORY = KvMemory("print", "boot", 1, 1, 100, 100, 100, 1e9, 1e9, shared="machine")


class Engine:
    """A fake instance. It hangs or fails on demand."""

    def __init__(self, memory: KvMemory | None = MEMORY, **said: object) -> None:
        self.memory = msgspec.structs.replace(memory, **said) if memory is not None else None
        self.adapters: dict[str, str] = {}
        # Those that it loads: what it finds in each place, or the error that it raises.
        self.found: dict[str, str | Exception] = {}
        self.added: dict[str, ServedAdapter] = {}
        self.loading = asyncio.Event()
        self.loading.set()
        self.places = 10
        self.reports: tuple[ResidencyReport, ...] = ()
        self.hangs = False
        self.generates_kv = False
        self.fails: Exception | None = None
        self.asked = 0
        self.orders: list[Orders] = []

    async def info(self) -> EngineInfo:
        self.asked += 1
        if self.hangs:
            await asyncio.Event().wait()
        if self.fails is not None:
            raise self.fails
        served = {name: ServedAdapter(digest) for name, digest in self.adapters.items()}
        return EngineInfo("model", "fake", 100_000, self.memory, adapters=served | self.added)

    async def load_adapter(self, name: str, source: str) -> str:
        await self.loading.wait()
        if self.fails is not None:
            raise self.fails
        found = self.found[source]
        if isinstance(found, Exception):
            raise found
        if name in self.adapters or self.added.get(name, ServedAdapter(found)).digest != found:
            raise Conflict(f"{name} is configured, or served with other files")
        if len(self.added) >= self.places:
            raise Conflict("no place")
        self.added[name] = ServedAdapter(found, source)
        return found

    async def unload_adapter(self, name: str) -> None:
        if self.fails is not None:
            raise self.fails
        if name in self.adapters:
            raise Conflict(f"{name} is configured")
        if self.added.pop(name, None) is None:
            raise UnknownModel(f"no {name}")

    async def residency(self) -> tuple[ResidencyReport, ...]:
        return self.reports

    async def carry_out(self, orders: Orders) -> tuple[LostCopy, ...]:
        self.orders.append(orders)
        return ()

    async def stream(self, plan, sampling):
        assert sampling.max_tokens == 1
        yield GenerationStep("", 1, PrefillResult(plan.prompt.token_count, 0, 1.0), "length")

    async def probe_prefill(self, cached_tokens: int, new_tokens: int) -> PrefillCost:
        return PrefillCost(cached_tokens, new_tokens, 0.001 * new_tokens)

    def restarts(self, **said: object) -> None:
        assert self.memory is not None
        self.memory = msgspec.structs.replace(self.memory, boot=f"{self.memory.boot}+", **said)
        self.reports = ()
        self.added = {}


class Fleet:
    """The running instances."""

    def __init__(self, **engines: Engine) -> None:
        self.engines = engines

    def names(self):
        return set(self.engines)

    def kv_generators(self):
        return [name for name, engine in self.engines.items() if engine.generates_kv]

    def at(self, instance: str) -> Engine:
        return self.engines[instance]


def held(tier: Tier, documents: str, instance: str | None = None, first_page: int = 0) -> ResidencyReport:
    pages = Pages(tuple(range(first_page, first_page + TOKENS)), 9 + first_page) if tier is Tier.HOST else None
    return ResidencyReport(tier, (HeldNode("tenant", tuple(documents), TOKENS, pages),), instance)
