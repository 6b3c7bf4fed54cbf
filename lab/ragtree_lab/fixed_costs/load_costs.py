"""What a load costs above the same prefix in vLLM's own cache, by tier and by the length of the prefix."""

import tempfile
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from statistics import median
from uuid import uuid4

from examine.measuring import Progress
from examine.measuring.engines import generate
from examine.measuring.kv_paths import KvPath, random_segment
from examine.measuring.tier_rounds import carried_out, forget, move
from generator.engines.vllm_engine import VllmEngine
from protocol.errors import InternalError
from protocol.generation import Sampling
from protocol.kv import Orders
from protocol.prompts import SegmentKind
from protocol.tiers import Tier
from ragtree_lab.measuring.engines import ComparedEngines

LENGTHS = (352, 2048)
"""Tokens of the prefixes that are loaded."""
TIERS = (Tier.GPU, Tier.HOST, Tier.DISK)
_SYSTEM_TOKENS = 32
_SAMPLES = 3
"""In each round, of each tier."""


class LoadCosts:
    """Times the first token after prefixes of ``lengths`` tokens, in ``rounds`` rounds with new documents.

    Two engines with equal flags run in turn, one plain and one with the connector. A short request goes in front of
    each one that is timed: the first after a pause takes longer, whatever it does. Of some samples the shortest counts:
    what else runs on the machine only adds.
    """

    def __init__(self, engines: ComparedEngines, lengths: Sequence[int], rounds: int) -> None:
        self._engines = engines
        self._lengths = lengths
        self._rounds = rounds

    async def run(self, async_scheduling: bool, progress: Progress) -> dict[int, dict[str, float]]:
        """Return milliseconds by length: vLLM's own cache (``floor``), and by tier how much longer that takes.

        Each is a median over the rounds. Raises what the engines raise, and InternalError if a tier lost its KV.
        """
        arguments = {"async_scheduling": async_scheduling}
        took: dict[int, dict[str, list[float]]] = {
            length: {case: [] for case in ("floor", *TIERS)} for length in self._lengths
        }
        with tempfile.TemporaryDirectory(prefix="ragtree-bench-") as folder:
            async with (
                self._engines.plain(engine_args=arguments) as plain,
                self._engines.caching(Path(folder), engine_args=arguments) as caching,
            ):
                for number in range(self._rounds + 1):
                    for length in self._lengths:
                        one = await self._round(plain, caching, length, number % 2 == 0)
                        # The first round warms up both engines.
                        for case, came_ms in one.items() if number else ():
                            took[length][case].append(came_ms)
                    progress(f"loads, {'a' if async_scheduling else ''}synchronous", number + 1, self._rounds + 1)
        return {
            length: {"floor": median(cases["floor"])}
            | {
                tier.value: median(came - own for came, own in zip(cases[tier], cases["floor"], strict=True))
                for tier in TIERS
            }
            for length, cases in took.items()
        }

    async def _round(self, plain: VllmEngine, caching: VllmEngine, length: int, plain_first: bool) -> dict[str, float]:
        memory = (await caching.info()).kv
        if memory is None:
            raise InternalError("the engine keeps no KV, so there is nothing to measure")
        drawn = uuid4().hex
        system = random_segment(f"system {drawn}", _SYSTEM_TOKENS, SegmentKind.SYSTEM)
        path = KvPath((system, random_segment(f"document {drawn}", length - _SYSTEM_TOKENS)), memory.paging)
        if not plain_first:
            return await self._loads(caching, path) | await self._floor(plain, path)
        return await self._floor(plain, path) | await self._loads(caching, path)

    async def _floor(self, plain: VllmEngine, path: KvPath) -> dict[str, float]:
        await generate(plain, path.plan("first", None, None), Sampling(1))
        return {"floor": await self._sampled(plain, path, None)}

    async def _loads(self, caching: VllmEngine, path: KvPath) -> dict[str, float]:
        await generate(caching, path.plan("first", None, Tier.HOST), Sampling(1))

        async def leave_the_gpu() -> None:
            await forget(caching, path, (Tier.GPU,))

        took: dict[str, float] = {}
        took[Tier.HOST] = await self._sampled(caching, path, Tier.HOST, leave_the_gpu)
        await move(caching, path, Tier.HOST, Tier.DISK)
        took[Tier.DISK] = await self._sampled(caching, path, Tier.DISK, leave_the_gpu)
        await generate(caching, path.plan("kept", Tier.DISK, Tier.GPU), Sampling(1))
        took[Tier.GPU] = await self._sampled(caching, path, Tier.GPU)
        await carried_out(caching, Orders((*path.moves(Tier.GPU, None), *path.moves(Tier.DISK, None))))
        return took

    async def _sampled(
        self,
        engine: VllmEngine,
        path: KvPath,
        tier: Tier | None,
        before: Callable[[], Awaitable[None]] | None = None,
    ) -> float:
        """Return the shortest time of some questions after a prefix that stays where it is."""
        kept = Tier.GPU if tier is Tier.GPU else None
        came = []
        for _ in range(_SAMPLES):
            if before is not None:
                await before()
            short = random_segment(uuid4().hex, _SYSTEM_TOKENS)
            await generate(engine, KvPath((short,), path.paging).plan("warm", None, None), Sampling(1))
            one = await generate(engine, path.plan(f"second {uuid4().hex}", tier, kept), Sampling(1))
            if tier is not None and one.prefill.loaded.get(tier, 0) != path.tokens:
                raise InternalError(f"not all of {path.tokens} tokens came from {tier}: {one.prefill.loaded}")
            came.append(one.ttft_ms)
        return min(came)
