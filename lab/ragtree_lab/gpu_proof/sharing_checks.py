"""A GPU's engine and a CPU's engine with the same weights share neutral pages of KV, as KV generators on CPUs do."""

import asyncio
import time

from examine.composing.benchmark import ComposedPlans
from examine.composing.rows import Way
from examine.measuring.kv_paths import KvPath, random_segment
from protocol.kv import Orders, Paging
from protocol.prompts import SegmentKind
from protocol.tiers import Tier
from ragtree_lab.gpu_proof.answers import TOLERANCE, check_documents_matter, compare, uncached_plan
from ragtree_lab.gpu_proof.checked_paths import AskedEngine, checked_path, forget_blocks, put
from ragtree_lab.gpu_proof.cpu_engine import CpuEngine, sharing_engine
from ragtree_lab.gpu_proof.process import Task

_SYSTEM_TOKENS = 27
_DONATED = (250, 250, 250, 250)
_PREFILL_TOKENS = 2000
_PREFILLS = 4


class SharingChecks:
    """Checks of two engines, which the first of them starts. They have one arena of host memory, and one folder."""

    def __init__(self, task: Task) -> None:
        given = task.group.settings
        self._gpu = sharing_engine(task)
        self._cpu = CpuEngine(task, given["cpu_python"])
        self._page_tokens: int = given["block_tokens"]
        self._questions: int = given["questions"]
        self._tolerance = TOLERANCE[given["dtype"]]
        self._engines: dict[str, AskedEngine] = {"gpu": self._gpu, "cpu": self._cpu}

    async def usable(self) -> bool:
        """Whether both engines are alive and idle again."""
        try:
            await self._clear()
        except (ValueError, OSError):
            return False
        return await self._gpu.usable()

    async def close(self) -> None:
        """End the engines."""
        await self._cpu.close()
        await self._gpu.close()

    async def start(self) -> str:
        """Start both engines. Their KV has the same fingerprint."""
        await asyncio.gather(self._cpu.start(), self._gpu.get())
        if await self._gpu.fingerprint() != await self._cpu.fingerprint():
            raise ValueError("the engines' KV differs in weights, dtype, or the order of pages")
        return self._gpu.opened()

    async def loads(self, saver: str, tier: str) -> str:
        """What one engine has saved, the other one loads. Its answers are those that it gives without any cache."""
        source, pairs, others = Tier(tier), [], []
        (loader,) = (engine for name, engine in self._engines.items() if name != saver)
        names = (f"{saver} {tier}", f"not {saver} {tier}")
        path, other = (checked_path(name, Paging(self._page_tokens)) for name in names)
        await put(self._engines[saver], path, source)
        for number in range(self._questions):
            question = f"question {number}"
            answer = await loader.ask(path.plan(question, source, None))
            if answer.prefill.loaded != {source: path.tokens}:
                raise ValueError(f"{answer.prefill.loaded} was loaded instead of {path.tokens} tokens from {tier}")
            # Else the next question would find in the engine's blocks what this one has loaded.
            await forget_blocks(loader, path)
            pairs.append((answer, await loader.ask(uncached_plan(path, question))))
            others.append((answer, await loader.ask(uncached_plan(other, question))))
        await self._clear()
        check_documents_matter(others)
        return compare(pairs, self._tolerance)

    async def composes(self, saver: str) -> str:
        """An engine composes prompts of documents that the other one has computed as it does with its own."""
        pairs = []
        (composer,) = (engine for name, engine in self._engines.items() if name != saver)
        for number in range(self._questions):
            answers = []
            for engine in (self._engines[saver], composer):
                plans = self._donated(f"{saver} {number}")
                question = random_segment(f"question {number}", 21, SegmentKind.QUESTION)
                for plan in plans.prepare(question):
                    await engine.ask(plan)
                answers.append(await composer.ask(plans.composed(question, Way("none", 0.0))))
                if answers[-1].prefill.composed_tokens != sum(_DONATED[1:]):
                    raise ValueError(f"{answers[-1].prefill.composed_tokens} tokens were reused")
                await self._clear()
            pairs.append((answers[0], answers[1]))
        return compare(pairs, self._tolerance)

    async def prefill_speeds(self) -> str:
        """How fast each engine prefills a document: what a KV generator on this CPU can take off this GPU."""
        figures = []
        for name, engine in self._engines.items():
            took = []
            for number in range(_PREFILLS + 1):
                path = KvPath([random_segment(f"{name} speed {number}", _PREFILL_TOKENS)], Paging(self._page_tokens))
                plan = path.plan("?", None, Tier.HOST)
                began = time.perf_counter()
                await engine.ask(plan)
                took.append(time.perf_counter() - began)
            await self._clear()
            # The first one warms up.
            figures.append(f"{name} {_PREFILL_TOKENS * _PREFILLS / sum(took[1:]):,.0f} tokens/s")
        return ", ".join(figures)

    def _donated(self, name: str) -> ComposedPlans:
        documents = [random_segment(f"{name} {number}", tokens) for number, tokens in enumerate(_DONATED)]
        system = random_segment("system", _SYSTEM_TOKENS, SegmentKind.SYSTEM)
        return ComposedPlans((system, *documents), random_segment(f"{name} neighbour", 45), Paging(self._page_tokens))

    async def _clear(self) -> None:
        for engine in self._engines.values():
            await engine.carry_out(Orders(everything=True))
