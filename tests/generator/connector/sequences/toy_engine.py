"""vLLM's own scheduler and RAGTree's connector around a toy model, which runs thousands of steps a second.

The toy stands in for the model runner only. The KV of a token depends on all tokens up to it, and the next token on all
KV of the request's blocks, so a wrong byte anywhere in front changes the answer.
"""

import copy
from collections import deque
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from tiny_models import llama, make_config_folder
from vllm import SamplingParams
from vllm.config import KVTransferConfig, VllmConfig
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
from vllm.engine.arg_utils import EngineArgs
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine import FinishReason
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

from generator.connector.connector import RagtreeConnector
from generator.connector.messages import EngineReport, RequestMessage
from generator.connector.worker.worker_side import WorkerSide

PAGE = 4
SLOTS = 3
STEP_TOKENS = 16
VOCABULARY = 97
_LAYER = "layer"
_MODULUS = 65_521


def answer_to(prompt: Sequence[int], tokens: int) -> list[int]:
    """The toy model's answer, computed without any KV cache."""
    values: list[int] = []
    answer: list[int] = []
    for _ in range(tokens):
        known = [*prompt, *answer]
        for token in known[len(values) :]:
            values.append(_value(values[-1] if values else 0, token))
        answer.append(_next_token(values))
    return answer


def _value(previous: int, token: int) -> int:
    return (previous * 31 + token * 17 + 7) % _MODULUS


def _next_token(values: Sequence[int]) -> int:
    return sum((position + 3) * value for position, value in enumerate(values)) % VOCABULARY


class InProcessConnector(RagtreeConnector):
    """Keeps the reports that otherwise leave the engine's process."""

    def __init__(self, vllm_config: VllmConfig, role: KVConnectorRole, kv_cache_config: KVCacheConfig) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        self.reports: list[EngineReport] = []

    def _publish(self, report: EngineReport) -> None:
        self.reports.append(report)


class _Prompt:
    """A request as the model runner knows it: its tokens, and the blocks that it reads and writes."""

    def __init__(self, tokens: Sequence[int], blocks: Sequence[int]) -> None:
        self.tokens = list(tokens)
        self.blocks = list(blocks)


class ToyRunner:
    """Computes what the scheduler schedules, and calls the connector as vLLM's model runner does."""

    def __init__(self, connector: RagtreeConnector, blocks: int) -> None:
        self._connector = connector
        # Garbage, as in reused memory.
        self._kv = torch.randint(0, _MODULUS, (blocks, 2, PAGE, 1)).float()
        self._prompts: dict[str, _Prompt] = {}
        connector.register_kv_caches({_LAYER: self._kv})

    def execute(self, output: SchedulerOutput) -> ModelRunnerOutput:
        """Run one step."""
        self._take(output)
        connector = self._connector
        connector.bind_connector_metadata(output.kv_connector_metadata)
        if output.has_sync_kv_loads:
            connector.start_load_kv(None)
        sampled = {name: self._compute(name, output) for name in output.num_scheduled_tokens}
        if not output.has_sync_kv_loads:
            connector.start_load_kv(None)
        connector.wait_for_save()
        _, loaded = connector.get_finished(output.finished_req_ids)
        result = KVConnectorOutput(
            finished_recving=loaded,
            invalid_block_ids=connector.get_block_ids_with_load_errors(),
            kv_connector_worker_meta=connector.build_connector_worker_meta(),
        )
        connector.clear_connector_metadata()
        names = list(sampled)
        return ModelRunnerOutput(
            names,
            {name: index for index, name in enumerate(names)},
            list(sampled.values()),
            kv_connector_output=None if result.is_empty() else result,
        )

    def _take(self, output: SchedulerOutput) -> None:
        for name in output.finished_req_ids:
            self._prompts.pop(name, None)
        for new in output.scheduled_new_reqs:
            self._prompts[new.req_id] = _Prompt(new.prompt_token_ids, new.block_ids[0])
        known = output.scheduled_cached_reqs
        for name, blocks in zip(known.req_ids, known.new_block_ids, strict=True):
            prompt = self._prompts[name]
            if name in known.all_token_ids:
                prompt.tokens = list(known.all_token_ids[name])
            new_blocks = blocks[0] if blocks is not None else []
            prompt.blocks = new_blocks if name in known.resumed_req_ids else prompt.blocks + new_blocks
        starts = {new.req_id: new.num_computed_tokens for new in output.scheduled_new_reqs}
        self._starts = starts | dict(zip(known.req_ids, known.num_computed_tokens, strict=True))

    def _compute(self, name: str, output: SchedulerOutput) -> list[int]:
        prompt, start = self._prompts[name], self._starts[name]
        end = start + output.num_scheduled_tokens[name]
        slots = [(prompt.blocks[position // PAGE], position % PAGE) for position in range(end)]
        values = [int(self._kv[block, 0, offset, 0]) for block, offset in slots[:start]]
        copies = [int(self._kv[block, 1, offset, 0]) for block, offset in slots[:start]]
        for position in range(start, end):
            block, offset = slots[position]
            value = _value(values[-1] if values else 0, prompt.tokens[position])
            values.append(value)
            copies.append(value)
            self._kv[block, :, offset, 0] = value
        if end < len(prompt.tokens):
            return []
        # Both halves of the KV count.
        token = _next_token(values) if copies == values else (_next_token(values) + 1) % VOCABULARY
        prompt.tokens.append(token)
        return [token]


class ToyEngine:
    """An engine in steps. Its KV is kept under ``folder``, which several engines may share.

    ``model`` is a folder for the model's configuration.
    """

    def __init__(self, folder: Path, blocks: int, async_scheduling: bool, model: Path, **kv: Any) -> None:
        config = _config(folder, blocks, async_scheduling, model, kv)
        spec = FullAttentionSpec(block_size=PAGE, num_kv_heads=1, head_size=1, dtype=torch.float32)
        kv_cache = KVCacheConfig(blocks, [], [KVCacheGroupSpec([_LAYER], spec)])
        kind = AsyncScheduler if async_scheduling else Scheduler
        self.scheduler = kind(config, kv_cache, StructuredOutputManager(config), block_size=PAGE)
        self.worker = KVConnectorFactory.create_connector(config, KVConnectorRole.WORKER, kv_cache)
        self._runner = ToyRunner(self.worker, blocks)
        self._under_way: deque[tuple[SchedulerOutput, ModelRunnerOutput]] = deque()
        self._at_once = 2 if async_scheduling else 1
        self.answers: dict[str, list[int]] = {}
        self.finished: set[str] = set()

    @property
    def connector(self) -> InProcessConnector:
        """The scheduler's half of the connector."""
        return self.scheduler.connector

    @property
    def worker_side(self) -> WorkerSide:
        """The worker's half of the connector."""
        return self.worker._worker_side

    @property
    def free_blocks(self) -> int:
        """The number of free blocks."""
        return self.scheduler.kv_cache_manager.block_pool.get_num_free_blocks()

    def send(self, message: RequestMessage, prompt: Sequence[int], max_tokens: int) -> None:
        """Add a request, named as its message."""
        params = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
        params.extra_args = {"kv_transfer_params": message.as_parameters()}
        salt = message.plan.namespace if message.plan is not None else None
        request = Request(message.name, list(prompt), params, None, cache_salt=salt or None, block_hasher=_hasher())
        self.answers[message.name] = []
        self.scheduler.add_request(request)

    def abort(self, name: str) -> None:
        """Abort a request, as vLLM does between two steps."""
        if name not in self.finished:
            self.finished.add(name)
            self.scheduler.finish_requests(name, RequestStatus.FINISHED_ABORTED)

    @property
    def idle(self) -> bool:
        """Whether there is nothing to do."""
        return not self._under_way and not self.scheduler.has_requests()

    def step(self) -> None:
        """Do what vLLM's engine core does in one step."""
        if self.scheduler.has_requests():
            output = self.scheduler.schedule()
            self._under_way.append((output, self._runner.execute(output)))
            if len(self._under_way) < self._at_once:
                return
        if self._under_way:
            for results in self.scheduler.update_from_output(*self._under_way.popleft()).values():
                for result in results.outputs:
                    self.answers[result.request_id] += result.new_token_ids
                    if result.finish_reason is not None:
                        assert result.finish_reason is not FinishReason.ERROR
                        self.finished.add(result.request_id)

    def run_until(self, condition: Callable[[], bool], most_steps: int = 20_000) -> None:
        """Step until a condition holds."""
        for _ in range(most_steps):
            if condition():
                return
            self.step()
        raise AssertionError("the engine does not come to an end")

    def close(self) -> None:
        """Close the engine."""
        self.worker.shutdown()
        self.scheduler.shutdown()


@cache
def _hasher() -> Callable[[Request], list[Any]]:
    init_none_hash(sha256)
    return get_request_block_hasher(PAGE, sha256)


@cache
def _vllm_config(model: Path) -> VllmConfig:
    return EngineArgs(
        model=str(make_config_folder(model, llama())),
        dtype="float32",
        max_model_len=256,
        max_num_seqs=SLOTS,
        max_num_batched_tokens=STEP_TOKENS,
        enforce_eager=True,
    ).create_engine_config()


def _config(folder: Path, blocks: int, async_scheduling: bool, model: Path, kv: dict[str, Any]) -> VllmConfig:
    config = copy.copy(_vllm_config(model))
    for part in ("scheduler_config", "cache_config", "compilation_config", "parallel_config"):
        setattr(config, part, copy.copy(getattr(config, part)))
    config.scheduler_config.async_scheduling = async_scheduling
    config.scheduler_config.disable_hybrid_kv_cache_manager = True
    config.cache_config.num_gpu_blocks = blocks
    config.cache_config.block_size = PAGE
    config.cache_config.enable_prefix_caching = True
    layer = SimpleNamespace(
        num_kv_heads=1,
        head_size=1,
        head_size_v=1,
        impl=SimpleNamespace(do_kv_cache_update=_write),
        get_attn_backend=lambda: SimpleNamespace(get_name=lambda: "TOY"),
    )
    config.compilation_config.static_forward_context = {_LAYER: layer}
    config.kv_transfer_config = KVTransferConfig(
        kv_connector="InProcessConnector",
        kv_connector_module_path=__name__,
        kv_role="kv_both",
        kv_load_failure_policy="recompute",
        kv_connector_extra_config={"disk_dir": str(folder / "kv"), "host_dir": str(folder), **kv},
    )
    return config


def _write(_layer: object, keys: torch.Tensor, values: torch.Tensor, kv: torch.Tensor, slots: torch.Tensor) -> None:
    """The toy's attention backend: writes keys and values, shape [tokens, 1, 1], into the slots of a cache."""
    blocks, offsets = slots // PAGE, slots % PAGE
    kv[blocks, 0, offsets] = keys[:, 0].to(kv.dtype)
    kv[blocks, 1, offsets] = values[:, 0].to(kv.dtype)
