"""The engine that a group's checks share. The first of them starts it."""

import asyncio
import json

from generator.engines.vllm_arguments import engine_arguments
from generator.engines.vllm_engine import VllmEngine
from generator.settings import GeneratorSettings, KvSettings
from protocol.kv import LostCopy, Orders, Paging
from protocol.plans import PrefillPlan
from ragtree_lab.gpu_proof.answers import Answer, ask
from ragtree_lab.gpu_proof.models import make_model
from ragtree_lab.gpu_proof.process import Task
from ragtree_lab.gpu_proof.random_weights import LOAD_FORMAT


class CheckedEngine:
    """An engine with the settings of a task's group. Sizes are in tokens.

    Its prompts and answers have up to ``longest``, its KV cache ``cache_tokens``, and a step ``step_tokens``.
    """

    def __init__(self, task: Task, longest: int, cache_tokens: int, step_tokens: int, host_gib: float) -> None:
        given = task.group.settings
        self._log = task.log
        self._runner: str | None = given.get("runner")
        self.page_tokens: int = given["block_tokens"]
        self.paging = Paging(self.page_tokens)
        """As the engine says once it runs."""
        self.disk_folder = task.scratch / "kv"
        self._model = make_model(task.scratch / "model", given["shape"], longest)
        self._settings = GeneratorSettings(
            model=str(self._model),
            max_model_len=longest,
            max_num_seqs=8,
            dtype=given["dtype"],
            kv=KvSettings(
                disk_dir=self.disk_folder,
                host_gib=host_gib,
                disk_gib=host_gib,
                host_dir=task.host_folder(int(host_gib * (1 << 30))),
                page_layout=given.get("page_layout", "engine"),
            ),
            engine_args={
                "load_format": LOAD_FORMAT,
                "gpu_memory_utilization": 0.8,
                "block_size": self.page_tokens,
                "num_gpu_blocks_override": given.get("cache_times", 1) * cache_tokens // self.page_tokens,
                "max_num_batched_tokens": step_tokens,
                "async_scheduling": True,
                **given["engine_args"],
            },
        )
        self._started: VllmEngine | None = None

    async def get(self) -> VllmEngine:
        """The engine, which runs from the first call on. Raises ValueError if it has another runner than asked for."""
        if self._started is None:
            if self._runner is not None and self._runs_v2() != (self._runner == "V2"):
                raise ValueError(f"vLLM does not use Model Runner {self._runner} here")
            engine = VllmEngine(self._settings, self._model)
            await engine.start()
            self._started = engine
            memory = (await engine.info()).kv
            self.paging = memory.paging if memory is not None else self.paging
        return self._started

    async def ask(self, plan: PrefillPlan) -> Answer:
        """The greedy answer to a plan."""
        return await ask(await self.get(), plan)

    async def carry_out(self, orders: Orders) -> tuple[LostCopy, ...]:
        """Carry out orders; what could not be copied is returned."""
        return await (await self.get()).carry_out(orders)

    async def fingerprint(self) -> str:
        """The fingerprint of the engine's KV. Raises ValueError if it keeps none."""
        memory = (await (await self.get()).info()).kv
        if memory is None:
            raise ValueError("the engine keeps no KV")
        return memory.fingerprint

    async def usable(self) -> bool:
        """Whether the engine is alive and idle again."""
        if self._started is None:
            return False
        try:
            async with asyncio.timeout(10):
                await self._started.ready()
                await self._started.carry_out(Orders(everything=True))
        except Exception:
            return False
        return True

    async def close(self) -> None:
        """End the engine, and free its host memory."""
        if self._started is not None:
            await self._started.close()
        self._settings.kv.discard_host_memory()

    def opened(self) -> str:
        """What the connector has said about the KV cache."""
        line = next(line for line in self._log.read_text().splitlines() if "kv_cache_opened" in line)
        # vLLM may put the process's name in front.
        facts = json.loads(line[line.index("{") :])
        host, disk = facts["host_bytes_per_s"] / 1e9, facts["disk_bytes_per_s"] / 1e9
        return f"copies a page: {facts['copies_per_page']}, host memory {host:.1f} GB/s, disk {disk:.1f} GB/s"

    def _runs_v2(self) -> bool:
        from vllm.engine.arg_utils import AsyncEngineArgs

        arguments = engine_arguments(self._settings, self._model, "generator")
        return bool(AsyncEngineArgs(**arguments).create_engine_config().use_v2_model_runner)
