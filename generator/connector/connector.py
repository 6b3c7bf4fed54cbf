"""The connector as vLLM sees it: each of the contract's calls, passed to the half that it belongs to.

Scheduler-side: on_new_request, get_num_new_matched_tokens, update_state_after_alloc, build_connector_meta,
update_connector_output, request_finished, get_kv_connector_stats, has_pending_push_work.
Worker-side: register_kv_caches, start_load_kv, wait_for_save, get_finished, get_block_ids_with_load_errors,
build_connector_worker_meta.
"""

from typing import TYPE_CHECKING, Any

import msgspec
import structlog
import torch
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1, KVConnectorRole
from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorStats

from generator.connector.blocks import PagedBlocks, marks
from generator.connector.fingerprint import fingerprint
from generator.connector.messages import EngineReport, RequestOrders
from generator.connector.open_tiers import describe, open_tiers
from generator.connector.scheduler_side import SchedulerHalf
from generator.connector.step_jobs import StepJobs, StepResults
from generator.connector.worker_side import WorkerHalf
from generator.settings import KvSettings
from protocol.errors import ConfigError
from protocol.logs import configure_logging

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.core.block_pool import BlockPool
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.outputs import KVConnectorOutput
    from vllm.v1.request import Request

log = structlog.get_logger(__name__)


class ReportStats(KVConnectorStats):  # type: ignore[misc]  # vLLM is untyped here
    """An ``EngineReport`` in the only envelope that leaves the engine with every step."""

    @classmethod
    def of(cls, report: EngineReport) -> "ReportStats":
        """The report, packed."""
        return cls(data={"report": msgspec.to_builtins(report)})

    def is_empty(self) -> bool:
        """Whether there is no report."""
        return not self.data

    def reset(self) -> None:
        """Drop the report."""
        self.data.clear()

    def aggregate(self, other: KVConnectorStats) -> KVConnectorStats:
        """The later report: each is read as it comes."""
        return other

    def reduce(self) -> dict[str, int | float]:
        """Nothing for vLLM's own log lines."""
        return {}


class RagtreeConnector(KVConnectorBase_V1):  # type: ignore[misc]
    """Keeps documents' KV across tiers for an unmodified vLLM, as the plans say that requests bring along.

    ``kv_connector_extra_config`` has ``instance``, the name of this engine, and ``KvSettings``; what it has under
    ``controller`` is for whoever plans beside the engine. Raises ConfigError for a model or a parallelism whose KV
    cannot be paged.
    """

    def __init__(self, vllm_config: "VllmConfig", role: KVConnectorRole, kv_cache_config: "KVCacheConfig") -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        if not structlog.is_configured():
            # The engine's process is one of its own, whose standard output may be somebody's results.
            configure_logging()
        _check(vllm_config, kv_cache_config)
        extra = dict(self._kv_transfer_config.kv_connector_extra_config)
        self.instance = str(extra.pop("instance", "engine"))
        self.controller_settings = dict(extra.pop("controller", {}))
        self._settings = KvSettings.model_validate(extra)
        self._page_tokens = kv_cache_config.kv_cache_groups[0].kv_cache_spec.block_size
        scheduling = vllm_config.scheduler_config
        self._scheduler = SchedulerHalf(
            self._page_tokens, self.instance, scheduling.max_num_seqs, scheduling.max_num_batched_tokens
        )
        self._worker: WorkerHalf | None = None

    @property
    def requires_kv_delivery(self) -> bool:
        """No: what is not saved is computed anew."""
        return False

    def shutdown(self) -> None:
        """End the worker half's threads."""
        if self._worker is not None:
            self._worker.close()

    # Scheduler-side

    def bind_gpu_block_pool(self, gpu_block_pool: "BlockPool") -> None:
        """Take the engine's pool of blocks."""
        self._scheduler.bind(gpu_block_pool)

    def on_new_request(self, request: "Request") -> None:
        """A request arrives."""
        self._scheduler.arrived(request, self._orders(request))

    def get_num_new_matched_tokens(self, request: "Request", num_computed_tokens: int) -> tuple[int | None, bool]:
        """How much a request can load."""
        return self._scheduler.matched(request, num_computed_tokens)

    def update_state_after_alloc(self, request: "Request", blocks: "KVCacheBlocks", num_external_tokens: int) -> None:
        """A request got its blocks."""
        self._scheduler.allocated(request, blocks.get_block_ids()[0], num_external_tokens)

    def build_connector_meta(self, scheduler_output: "SchedulerOutput") -> StepJobs:
        """The jobs of a step."""
        return self._scheduler.step(scheduler_output)

    def update_connector_output(self, connector_output: "KVConnectorOutput") -> None:
        """What the worker half did in a step."""
        results = connector_output.kv_connector_worker_meta
        assert results is None or isinstance(results, StepResults)
        self._scheduler.heard(results, connector_output.invalid_block_ids)

    def request_finished(self, request: "Request", block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        """A request ends; its blocks need not wait, for what is being saved is held."""
        self._scheduler.ended(request, block_ids)
        return False, None

    def has_pending_push_work(self) -> bool:
        """Whether to go on stepping without requests."""
        return self._scheduler.busy

    def get_kv_connector_stats(self) -> KVConnectorStats | None:
        """The scheduler half's report; the worker half has none."""
        if self.role is not KVConnectorRole.SCHEDULER:
            return None
        report = self._scheduler.report()
        return self._tell(report) if report is not None else None

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> KVConnectorStats | None:
        """The envelope, as it came out of the engine."""
        return ReportStats(data=data or {})

    # Worker-side

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        """The engine shows its KV cache: learn its layout, open the tiers."""
        num_blocks = self._kv_cache_config.num_blocks
        blocks = PagedBlocks(kv_caches, num_blocks, self._page_tokens, self._write_tokens)
        print_of_kv = fingerprint(self._vllm_config, blocks.layout)
        tiers = open_tiers(self._settings, print_of_kv, self._page_tokens, blocks.page_bytes)
        memory = describe(self._settings, print_of_kv, blocks, num_blocks, tiers)
        self._worker = WorkerHalf(blocks, tiers, memory, self._settings.loader_threads)

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:  # noqa: ANN401, ARG002
        """Loads, before the forward pass that needs them."""
        self._half.load(self._jobs)

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Nothing to wait for: loads are done before the forward pass, or belong to no request in it."""

    def save_kv_layer(self, layer_name: str, kv_layer: torch.Tensor, attn_metadata: Any, **kwargs: Any) -> None:  # noqa: ANN401
        """Nothing to do: whole nodes are saved out of the blocks, after the pass."""

    def wait_for_save(self) -> None:
        """Transfers, after the forward pass; they go on beside the next ones."""
        self._half.transfer(self._jobs)
        self._half.pause(self._jobs)

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:  # noqa: ARG002
        """Requests whose load in the background is over."""
        return None, self._half.take_loaded() or None

    def get_block_ids_with_load_errors(self) -> set[int]:
        """Blocks that were not loaded."""
        return self._half.take_failed()

    def build_connector_worker_meta(self) -> StepResults | None:
        """What else the worker half did."""
        return self._half.take_results()

    # Where plans come from, and where reports go: over the engine's border, unless somebody beside it plans

    def _orders(self, request: "Request") -> RequestOrders | None:
        """What a request brings along."""
        try:
            return RequestOrders.from_parameters(request.kv_transfer_params)
        except msgspec.ValidationError as error:
            log.warning("orders_unreadable", request=request.request_id, error=str(error))
            return None

    def _tell(self, report: EngineReport) -> KVConnectorStats | None:
        """Pass a report on."""
        return ReportStats.of(report)

    @property
    def _half(self) -> WorkerHalf:
        assert self._worker is not None, "the engine has not shown its KV cache"
        return self._worker

    @property
    def _jobs(self) -> StepJobs:
        jobs = self._get_connector_metadata()
        assert isinstance(jobs, StepJobs)
        return jobs

    def _write_tokens(self, name: str, cache: torch.Tensor, tokens: int) -> None:
        """Have the attention backend itself write marked tokens into a cache of one block."""
        layer = self._vllm_config.compilation_config.static_forward_context[name]
        keys = marks(tokens, layer.num_kv_heads, layer.head_size, cache)
        slots = torch.arange(tokens, dtype=torch.int64, device=cache.device)
        layer.impl.do_kv_cache_update(layer, keys, keys.clone(), cache, slots)


def _check(vllm_config: "VllmConfig", kv_cache_config: "KVCacheConfig") -> None:
    parallel = vllm_config.parallel_config
    if parallel.tensor_parallel_size * parallel.pipeline_parallel_size > 1:
        raise ConfigError("RAGTree's connector serves engines of one worker: no tensor or pipeline parallelism yet")
    if vllm_config.scheduler_config.async_scheduling:
        # A load that fails is known one step late then, and vLLM gives out a token that was computed on it.
        raise ConfigError("RAGTree's connector needs async scheduling to be off: --no-async-scheduling")
    if len(kv_cache_config.kv_cache_groups) != 1:
        raise ConfigError("RAGTree's connector serves models whose layers all keep the same KV: no hybrid ones yet")
