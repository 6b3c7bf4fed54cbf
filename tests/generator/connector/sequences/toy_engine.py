"""vLLM's own scheduler and RAGTree's connector around a toy model, which runs thousands of steps a second.

The toy stands in for the model runner only. It has layers of one kind or of several, each with its own blocks. In each
kind, the KV of a token depends on the KV in front of it that the layer attends to: all of it, or that in a window, or
on the state before it. The next token depends on all of that. So a wrong byte anywhere in it changes the answer.
"""

import copy
from collections import deque
from collections.abc import Callable, Sequence
from functools import cache
from math import gcd, lcm
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
from vllm.v1.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheSpec,
    MambaSpec,
    SlidingWindowSpec,
)
from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

from generator.connector.connector import RagtreeConnector
from generator.connector.messages import EngineReport, Prefilled, RequestMessage
from generator.connector.scheduler.node_end_scheduler import AsyncNodeEndScheduler, NodeEndScheduler
from generator.connector.worker.worker_side import WorkerSide
from protocol.kv import PageGroup, Paging

PAGE = 4
SLOTS = 3
STEP_TOKENS = 16
VOCABULARY = 97
ONE_KIND = (PageGroup(),)
_MODULUS = 65_521


def answer_to(prompt: Sequence[int], tokens: int, groups: Sequence[PageGroup] = ONE_KIND) -> list[int]:
    """The toy model's answer, computed without any KV cache."""
    values: list[list[int]] = [[] for _ in groups]
    answer: list[int] = []
    for _ in range(tokens):
        for token in [*prompt, *answer][len(values[0]) :]:
            for kind, (group, own) in enumerate(zip(groups, values, strict=True)):
                own.append(_value(kind, _attended(own, group), token))
        answer.append(_next_token([_attended(own, group) for group, own in zip(groups, values, strict=True)]))
    return answer


def _attended(values: Sequence[int], group: PageGroup) -> Sequence[int]:
    """Those of the values so far that the next token attends to."""
    return values[group.first_attended(len(values)) :]


def _value(kind: int, attended: Sequence[int], token: int) -> int:
    # The first and the last value, so that both ends of a window count.
    ends = (attended[0], attended[-1]) if attended else (0, 0)
    return (ends[0] * 7 + ends[1] * 31 + token * 17 + 7 + kind) % _MODULUS


def _next_token(attended: Sequence[Sequence[int]]) -> int:
    return sum((place + 3) * value for values in attended for place, value in enumerate(values)) % VOCABULARY


class InProcessConnector(RagtreeConnector):
    """Keeps the reports that otherwise leave the engine's process."""

    def __init__(self, vllm_config: VllmConfig, role: KVConnectorRole, kv_cache_config: KVCacheConfig) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        self.reports: list[EngineReport] = []
        self.prefilled: dict[str, Prefilled] = {}

    def _publish(self, report: EngineReport) -> None:
        self.reports.append(report)
        self.prefilled |= report.prefilled


class _Prompt:
    """A request as the model runner knows it: its tokens, and the blocks of each kind that it reads and writes."""

    def __init__(self, tokens: Sequence[int], blocks: Sequence[Sequence[int]]) -> None:
        self.tokens = list(tokens)
        self.blocks = [list(own) for own in blocks]


class ToyRunner:
    """Computes what the scheduler schedules, and calls the connector as vLLM's model runner does."""

    def __init__(self, connector: RagtreeConnector, blocks: int, groups: Sequence[PageGroup]) -> None:
        self._connector = connector
        self._groups = groups
        # All kinds share the memory of blocks. Garbage, as in reused memory.
        largest = PAGE * max(group.times for group in groups)
        self._kv = torch.randint(0, _MODULUS, (blocks, 2, largest, 1)).float()
        self._prompts: dict[str, _Prompt] = {}
        for kind, layer in enumerate(connector._vllm_config.compilation_config.static_forward_context.values()):
            layer.kv_cache = self._states() if groups[kind].states else self._kv_of(kind)
        connector.register_kv_caches({_layer(kind): self._kv_of(kind) for kind in range(len(groups))})

    def _states(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Each block's state in numbers of two kinds. Some of its memory is left over."""
        memory = self._kv.view(len(self._kv), -1)
        half = memory.shape[1] // 2
        return memory[:, :half], memory[:, half:-1].view(torch.int32)

    def _kv_of(self, kind: int) -> torch.Tensor:
        """Shape [blocks, 2, tokens, size]. If a block has fewer tokens, each one is larger."""
        return self._kv.view(len(self._kv), 2, PAGE * self._groups[kind].times, -1)

    def execute(self, output: SchedulerOutput) -> ModelRunnerOutput:
        """Run one step."""
        self._take(output)
        self._move_states(output)
        connector = self._connector
        connector.bind_connector_metadata(output.kv_connector_metadata)
        if output.has_sync_kv_loads:
            connector.start_load_kv(None)
        sampled = {name: self._compute(name, output) for name in output.num_scheduled_tokens}
        if not output.has_sync_kv_loads:
            connector.start_load_kv(None)
        connector.wait_for_save()
        ended = connector.get_transfer_results(output.finished_req_ids)
        failed = connector.get_block_ids_with_load_errors()
        computed = {block for name in sampled for blocks in self._prompts[name].blocks for block in blocks}
        # vLLM would go on with wrong tokens, or hang (vLLM issue 49250).
        assert not failed & computed, "a load has failed in the step that computes with it"
        result = KVConnectorOutput(
            finished_recving=ended.finished_recving,
            failed_recving=ended.failed_recving,
            invalid_block_ids=failed,
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
            self._prompts[new.req_id] = _Prompt(new.prompt_token_ids, new.block_ids)
        known = output.scheduled_cached_reqs
        for name, blocks in zip(known.req_ids, known.new_block_ids, strict=True):
            prompt = self._prompts[name]
            if name in known.all_token_ids:
                prompt.tokens = list(known.all_token_ids[name])
            if name in known.resumed_req_ids:
                prompt.blocks = [[] for _ in self._groups]
            for own, new_blocks in zip(prompt.blocks, blocks or [[] for _ in self._groups], strict=True):
                own.extend(new_blocks)
        starts = {new.req_id: new.num_computed_tokens for new in output.scheduled_new_reqs}
        self._starts = starts | dict(zip(known.req_ids, known.num_computed_tokens, strict=True))

    def _compute(self, name: str, output: SchedulerOutput) -> list[int]:
        prompt, start = self._prompts[name], self._starts[name]
        end = start + output.num_scheduled_tokens[name]
        kinds = [
            self._compute_kind(kind, blocks, prompt.tokens[:end], start) for kind, blocks in enumerate(prompt.blocks)
        ]
        if end < len(prompt.tokens):
            return []
        token = _next_token([values for values, _ in kinds])
        if not all(intact for _, intact in kinds):
            token = (token + 1) % VOCABULARY
        prompt.tokens.append(token)
        return [token]

    def _compute_kind(
        self, kind: int, blocks: Sequence[int], tokens: Sequence[int], start: int
    ) -> tuple[Sequence[int], bool]:
        """Compute from ``start`` on. Returns what the next token attends to, and whether both halves of it agree."""
        group, kv = self._groups[kind], self._kv_of(kind)
        size = kv.shape[2]
        if group.states:
            return self._compute_state(kind, blocks, tokens, start)
        first = group.first_attended(start)
        slots = [(blocks[position // size], position % size) for position in range(first, len(tokens))]
        known = [kv[block, :, offset] for block, offset in slots[: start - first]]
        values = [int(both[0, 0]) for both in known]
        intact = all(bool((both == both[0, 0]).all()) for both in known)
        for token, (block, offset) in zip(tokens[start:], slots[start - first :], strict=True):
            assert block, "a token is computed into no block"
            value = _value(kind, values[group.first_attended(first + len(values)) - first :], token)
            values.append(value)
            kv[block, :, offset] = value
        return values[group.first_attended(len(tokens)) - first :], intact

    def _move_states(self, output: SchedulerOutput) -> None:
        """Move the states of a step's requests into the blocks that it ends in, as vLLM does before all else."""
        for kind, group in enumerate(self._groups):
            size = PAGE * group.times
            for name, tokens in output.num_scheduled_tokens.items() if group.states else ():
                start, blocks = self._starts[name], self._prompts[name].blocks[kind]
                old, new = (start - 1) // size, (start + tokens - 1) // size
                if start and old != new:
                    self._kv[blocks[new]] = self._kv[blocks[old]]

    def _compute_state(
        self, kind: int, blocks: Sequence[int], tokens: Sequence[int], start: int
    ) -> tuple[Sequence[int], bool]:
        """Go on from the state after ``start`` tokens, in the block that the last of ``tokens`` belongs to."""
        size = PAGE * self._groups[kind].times
        block = blocks[(len(tokens) - 1) // size]
        assert block, "a state is computed into no block"
        known: list[int] = []
        intact = True
        if start:
            parts = [part[block] for part in self._states()]
            known = [int(parts[0][0])]
            intact = all(bool((part == known[0]).all()) for part in parts)
        for token in tokens[start:]:
            known = [_value(kind, known, token)]
        for part in self._states():
            part[block] = known[0]
        return known, intact


class ToyEngine:
    """An engine in steps. Its KV is kept under ``folder``, which several engines may share.

    ``model`` is a folder for the model's configuration. The model has layers of the kinds ``groups``. ``within_steps``
    says whether it loads from host memory within the steps that compute, as engines of one rank do.
    """

    def __init__(
        self,
        folder: Path,
        blocks: int,
        async_scheduling: bool,
        model: Path,
        groups: Sequence[PageGroup] = ONE_KIND,
        within_steps: bool = True,
        **kv: Any,
    ) -> None:
        config = _config(folder, blocks, async_scheduling, model, groups, kv)
        specs = [KVCacheGroupSpec([_layer(kind)], _spec(kind, groups)) for kind in range(len(groups))]
        kv_cache = KVCacheConfig(blocks, [], specs)
        self._hash_tokens = PAGE * gcd(*(group.times for group in groups))
        largest = PAGE * lcm(*(group.times for group in groups))
        plain, ends_with_nodes = (
            (AsyncScheduler, AsyncNodeEndScheduler) if async_scheduling else (Scheduler, NodeEndScheduler)
        )
        kind = ends_with_nodes if any(group.states for group in groups) else plain
        self.scheduler = kind(
            config, kv_cache, StructuredOutputManager(config), block_size=largest, hash_block_size=self._hash_tokens
        )
        self.worker = KVConnectorFactory.create_connector(config, KVConnectorRole.WORKER, kv_cache)
        self._runner = ToyRunner(self.worker, blocks, groups)
        if within_steps:
            pool = self.scheduler.kv_cache_manager.block_pool
            self.connector._scheduler_side.bind(pool, self.worker.step_loads)
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
    def paging(self) -> Paging:
        """How its KV is cut into pages."""
        return self.worker._paging

    @property
    def prefilled(self) -> dict[str, Prefilled]:
        """How each request was prefilled."""
        return self.connector.prefilled

    @property
    def free_blocks(self) -> int:
        """The number of free blocks."""
        return self.scheduler.kv_cache_manager.block_pool.get_num_free_blocks()

    def send(self, message: RequestMessage, prompt: Sequence[int], max_tokens: int) -> None:
        """Add a request, named as its message."""
        params = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
        params.extra_args = {"kv_transfer_params": message.as_parameters()}
        salt = message.plan.namespace if message.plan is not None else None
        request = Request(
            message.name, list(prompt), params, None, cache_salt=salt or None, block_hasher=_hasher(self._hash_tokens)
        )
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

    def step(self, meanwhile: Callable[[], None] | None = None) -> None:
        """Do what vLLM's engine core does in one step. ``meanwhile`` is called once the step is scheduled."""
        if self.scheduler.has_requests():
            output = self.scheduler.schedule()
            if meanwhile is not None:
                meanwhile()
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


def _layer(kind: int) -> str:
    return f"layer{kind}"


def _head_size(kind: int, groups: Sequence[PageGroup]) -> int:
    return max(group.times for group in groups) // groups[kind].times


def _spec(kind: int, groups: Sequence[PageGroup]) -> KVCacheSpec:
    window, times, chunks, states = groups[kind]
    if states:
        numbers = 2 * PAGE * max(group.times for group in groups)
        return MambaSpec(
            block_size=PAGE * times,
            shapes=((numbers // 2,), (numbers // 2 - 1,)),
            dtypes=(torch.float32, torch.int32),
            page_size_padded=numbers * torch.float32.itemsize,
            mamba_cache_mode="align",
        )
    shape: dict[str, Any] = {
        "block_size": PAGE * times,
        "num_kv_heads": 1,
        "head_size": _head_size(kind, groups),
        "dtype": torch.float32,
    }
    if chunks:
        return ChunkedLocalAttentionSpec(attention_chunk_size=window, **shape)
    return SlidingWindowSpec(sliding_window=window, **shape) if window else FullAttentionSpec(**shape)


@cache
def _hasher(tokens: int) -> Callable[[Request], list[Any]]:
    init_none_hash(sha256)
    return get_request_block_hasher(tokens, sha256)


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


def _config(
    folder: Path, blocks: int, async_scheduling: bool, model: Path, groups: Sequence[PageGroup], kv: dict[str, Any]
) -> VllmConfig:
    config = copy.copy(_vllm_config(model))
    for part in ("scheduler_config", "cache_config", "compilation_config", "parallel_config"):
        setattr(config, part, copy.copy(getattr(config, part)))
    config.scheduler_config.async_scheduling = async_scheduling
    config.scheduler_config.disable_hybrid_kv_cache_manager = False
    config.cache_config.num_gpu_blocks = blocks
    config.cache_config.block_size = PAGE * max((group.times for group in groups if group.states), default=1)
    config.cache_config.mamba_cache_mode = "align"
    config.cache_config.enable_prefix_caching = True
    config.compilation_config.static_forward_context = {
        _layer(kind): SimpleNamespace(
            num_kv_heads=1,
            head_size=_head_size(kind, groups),
            head_size_v=_head_size(kind, groups),
            impl=SimpleNamespace(do_kv_cache_update=_write),
            get_attn_backend=lambda: SimpleNamespace(get_name=lambda: "TOY"),
        )
        for kind in range(len(groups))
    }
    config.kv_transfer_config = KVTransferConfig(
        kv_connector="InProcessConnector",
        kv_connector_module_path=__name__,
        kv_role="kv_both",
        kv_load_failure_policy="recompute",
        kv_connector_extra_config={"disk_dir": str(folder / "kv"), "host_dir": str(folder), **kv},
    )
    return config


def _write(_layer: object, keys: torch.Tensor, values: torch.Tensor, kv: torch.Tensor, slots: torch.Tensor) -> None:
    """The toy's attention backend: writes keys and values, shape [tokens, 1, size], into the slots of a cache."""
    blocks, offsets = slots // kv.shape[2], slots % kv.shape[2]
    kv[blocks, 0, offsets] = keys[:, 0].to(kv.dtype)
    kv[blocks, 1, offsets] = values[:, 0].to(kv.dtype)
