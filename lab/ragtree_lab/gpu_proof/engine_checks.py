"""Level 2: KV through all tiers of a real vLLM, and what may go wrong on the way. No answer may change."""

import asyncio
import re

from examine.measuring.kv_paths import KvPath
from generator.engines.vllm_engine import VllmEngine
from protocol.generation import Sampling
from protocol.kv import LostCopy, Orders
from protocol.tiers import Tier
from ragtree_lab.gpu_proof.answers import TOLERANCE, ask, check_documents_matter, compare, uncached
from ragtree_lab.gpu_proof.checked_engine import CheckedEngine
from ragtree_lab.gpu_proof.checked_paths import checked_path, forget_blocks, put
from ragtree_lab.gpu_proof.process import Task

_CACHE_TOKENS = 2560
"""The engine's KV cache: room for three prompts of these checks, so that others are evicted or preempted."""

_LONGEST = 1024
_STEP_TOKENS = 256
"""Tokens of a step, fewer than a document has."""

_HOST_GIB = 0.25
_RUSH_TOKENS = 80
"""Tokens of each answer when requests outgrow the KV cache."""

_ABORTED_AFTER_S = (0.0, 0.001, 0.003, 0.01)


class EngineChecks:
    """Checks of one engine, which the first of them starts."""

    def __init__(self, task: Task) -> None:
        given = task.group.settings
        self._engine = CheckedEngine(task, _LONGEST, _CACHE_TOKENS, _STEP_TOKENS, _HOST_GIB)
        self._tolerance = TOLERANCE[given["dtype"]]
        self._questions: int = given["questions"]

    def _path(self, name: str, documents: tuple[int, ...] = (520, 150), first_page: int = 0) -> KvPath:
        return checked_path(name, self._engine.paging, documents, first_page)

    async def usable(self) -> bool:
        """Whether the engine is alive and idle again."""
        return await self._engine.usable()

    async def close(self) -> None:
        """End the engine."""
        await self._engine.close()

    async def start(self) -> str:
        """Start the engine."""
        await self._engine.get()
        return self._engine.opened()

    async def answers(self, tier: str) -> str:
        """Answers with KV from a tier are those without any cache, and those to another document are not."""
        engine, source, pairs, others = await self._engine.get(), Tier(tier), [], []
        path, other = self._path(tier), self._path(f"not {tier}")
        await put(self._engine, path, source)
        for number in range(self._questions):
            question = f"question {number}"
            answer = await ask(engine, path.plan(question, source, source if source is Tier.GPU else None))
            if answer.prefill.loaded != {source: path.tokens}:
                raise ValueError(f"{answer.prefill.loaded} was loaded instead of {path.tokens} tokens from {tier}")
            if source is not Tier.GPU:
                await forget_blocks(self._engine, path)
            pairs.append((answer, await uncached(engine, path, question)))
            others.append((answer, await uncached(engine, other, question)))
        await engine.carry_out(Orders(everything=True))
        check_documents_matter(others)
        return compare(pairs, self._tolerance)

    async def lost_in_memory(self) -> str:
        """A node that is no longer in host memory is computed again, and so is what stands behind it."""
        engine, path = await self._engine.get(), self._path("lost")
        await put(self._engine, path, Tier.HOST)
        await engine.carry_out(Orders((path.moves(Tier.HOST, None)[1],)))
        return await self._recovery(path, Tier.HOST, requests=1)

    async def damaged_on_disk(self) -> str:
        """A file with a wrong bit is computed again, reported and deleted."""
        path = self._path("damaged")
        await put(self._engine, path, Tier.DISK)
        (file,) = self._engine.disk_folder.rglob(f"{path.keys[1]}*")
        content = bytearray(file.read_bytes())
        content[len(content) // 2] ^= 4
        file.write_bytes(content)
        figure = await self._recovery(path, Tier.DISK, requests=1)
        if file.exists():
            raise ValueError("the damaged file is still there")
        return figure

    async def shared_failing_load(self, tier: str) -> str:
        """Requests for the same path are sent at once, and its load fails."""
        engine, source, path = await self._engine.get(), Tier(tier), self._path(f"shared {tier}")
        await put(self._engine, path, source)
        await engine.carry_out(Orders((path.moves(source, None)[1],)))
        return await self._recovery(path, source, requests=4)

    async def _recovery(self, path: KvPath, tier: Tier, requests: int) -> str:
        """Requests whose load fails are answered rightly, and so are later ones with what is kept of it."""
        engine, pairs = await self._engine.get(), []
        questions = [f"question {number}" for number in range(requests)]
        answers = await asyncio.gather(*(ask(engine, path.plan(question, tier, Tier.GPU)) for question in questions))
        if not any(LostCopy(path.keys[1], tier) in answer.prefill.lost for answer in answers):
            raise ValueError("no load was reported as failed")
        for number in range(self._questions - requests):
            questions.append(f"later question {number}")
            answers.append(await ask(engine, path.plan(questions[-1], Tier.GPU, Tier.GPU)))
        for answer, question in zip(answers, questions, strict=True):
            pairs.append((answer, await uncached(engine, path, question)))
        await engine.carry_out(Orders(everything=True))
        return compare(pairs, self._tolerance)

    async def preemption(self) -> str:
        """Four requests outgrow the KV cache, so vLLM preempts some. Two of them have loaded KV from host memory."""
        engine = await self._engine.get()
        # With its question, each has 603 of 2,560 tokens. The last ones outgrow it long before the first one ends,
        # although those that are loaded begin to answer sooner.
        rush = [self._path(f"rush {number}", documents=(555,), first_page=60 * number) for number in range(4)]
        sources = [Tier.HOST, Tier.HOST, None, None]
        for path, source in zip(rush, sources, strict=True):
            if source is not None:
                await put(self._engine, path, source)
        before = await self._preemptions(engine)
        plans = [path.plan("now", source, None) for path, source in zip(rush, sources, strict=True)]
        answers = await asyncio.gather(*(ask(engine, plan, _RUSH_TOKENS) for plan in plans))
        preempted = await self._preemptions(engine) - before
        if not preempted:
            raise ValueError("vLLM preempted no request, so nothing was tested")
        pairs = [
            (answer, await uncached(engine, path, "now", _RUSH_TOKENS))
            for answer, path in zip(answers, rush, strict=True)
        ]
        await engine.carry_out(Orders(everything=True))
        return f"{preempted:.0f} preempted; {compare(pairs, self._tolerance)}"

    async def abort(self) -> str:
        """Requests are aborted while they load. Others that run meanwhile are answered, and no block leaks."""
        engine, path = await self._engine.get(), self._path("aborted")
        await put(self._engine, path, Tier.DISK)
        pairs = []
        for delay in _ABORTED_AFTER_S:
            question = f"why, after {delay} s?"
            expected = await uncached(engine, path, question)
            stream = engine.stream(path.plan("never mind", Tier.DISK, Tier.GPU), Sampling(max_tokens=40))
            step = asyncio.create_task(anext(stream))
            beside = asyncio.create_task(ask(engine, path.plan(question, Tier.DISK, Tier.GPU)))
            await asyncio.sleep(delay)
            step.cancel()
            await asyncio.wait({step})
            await stream.aclose()
            pairs.append((await beside, expected))
            await forget_blocks(self._engine, path)
        # If the aborted requests still had their blocks, these would not fit.
        whole = [self._path(f"whole {number}", documents=(400, 500)) for number in range(2)]
        await asyncio.gather(*(ask(engine, one.plan("fits?", None, None), 2) for one in whole))
        await engine.carry_out(Orders(everything=True))
        return compare(pairs, self._tolerance)

    @staticmethod
    async def _preemptions(engine: VllmEngine) -> float:
        text = "\n".join((await engine.metrics()).values())
        return sum(float(count) for count in re.findall(r"^vllm:num_preemptions_total\S* (\S+)$", text, re.MULTILINE))
