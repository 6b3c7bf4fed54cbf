"""The connector class that vLLM loads: passes each call of vLLM's contract to the side that handles it.

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
from generator.connector.messages import EngineReport, RequestMessage
from generator.connector.open_tiers import measure_memory, open_tiers
from generator.connector.scheduler_side import SchedulerSide
from generator.connector.step_jobs import StepJobs, StepResults
from generator.connector.worker_side import WorkerSide
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
    """An ``EngineReport`` packed as connector stats, the only thing that leaves the engine with every step."""

    @classmethod
    def of(cls, report: EngineReport) -> "ReportStats":
        """Pack a report."""
        return cls(data={"report": msgspec.to_builtins(report)})

    def is_empty(self) -> bool:
        """Whether it carries no report."""
        return not self.data

    def reset(self) -> None:
        """Drop the report."""
        self.data.clear()

    def aggregate(self, other: KVConnectorStats) -> KVConnectorStats:
        """The later report, because each one is read as soon as it arrives."""
        return other

    def reduce(self) -> dict[str, int | float]:
        """No figures for vLLM's own log lines."""
        return {}


class RagtreeConnector(KVConnectorBase_V1):  # type: ignore[misc]
    """Keeps documents' KV across tiers for an unmodified vLLM, as the requests' plans say.

    ``kv_connector_extra_config`` has ``instance``, the name of this engine, and the fields of ``KvSettings``. Its
    ``controller`` entry is for an in-process planner. Raises ConfigError if the model's or the parallelism's KV cannot
    be paged, or if async scheduling is on.
    """

    def __init__(self, vllm_config: "VllmConfig", role: KVConnectorRole, kv_cache_config: "KVCacheConfig") -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        if not structlog.is_configured():
            # The engine runs in its own process, whose standard output may carry the results of a command.
            configure_logging()
        _check(vllm_config, kv_cache_config)
        extra = dict(self._kv_transfer_config.kv_connector_extra_config)
        self.instance = str(extra.pop("instance", "engine"))
        self.controller_settings = dict(extra.pop("controller", {}))
        self._settings = KvSettings.model_validate(extra)
        self._page_tokens = kv_cache_config.kv_cache_groups[0].kv_cache_spec.block_size
        scheduling = vllm_config.scheduler_config
        self._scheduler_side = SchedulerSide(
            self._page_tokens, self.instance, scheduling.max_num_seqs, scheduling.max_num_batched_tokens
        )
        # Opened in ``register_kv_caches``, which vLLM calls in the worker's process only.
        self._opened_worker_side: WorkerSide | None = None

    @property
    def requires_kv_delivery(self) -> bool:
        """False: KV that is not saved is computed again."""
        return False

    def shutdown(self) -> None:
        """Close the worker side."""
        if self._opened_worker_side is not None:
            self._opened_worker_side.close()

    # Scheduler-side

    def bind_gpu_block_pool(self, gpu_block_pool: "BlockPool") -> None:
        """Take the engine's block pool."""
        self._scheduler_side.bind(gpu_block_pool)

    def on_new_request(self, request: "Request") -> None:
        """Register a request."""
        self._scheduler_side.admit(request, self._message_of(request))

    def get_num_new_matched_tokens(self, request: "Request", num_computed_tokens: int) -> tuple[int | None, bool]:
        """The number of tokens a request can load, and whether they load in the background."""
        return self._scheduler_side.match(request, num_computed_tokens)

    def update_state_after_alloc(self, request: "Request", blocks: "KVCacheBlocks", num_external_tokens: int) -> None:
        """Record a request's blocks."""
        self._scheduler_side.allocated(request, blocks.get_block_ids()[0], num_external_tokens)

    def build_connector_meta(self, scheduler_output: "SchedulerOutput") -> StepJobs:
        """The jobs of a step."""
        return self._scheduler_side.step_jobs(scheduler_output)

    def update_connector_output(self, connector_output: "KVConnectorOutput") -> None:
        """Take the worker side's results of a step."""
        results = connector_output.kv_connector_worker_meta
        assert results is None or isinstance(results, StepResults)
        self._scheduler_side.update(results, connector_output.invalid_block_ids)

    def request_finished(self, request: "Request", block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        """Record the end of a request. Its blocks are free at once, because transfers retain what they save."""
        self._scheduler_side.complete(request, block_ids)
        return False, None

    def has_pending_push_work(self) -> bool:
        """Whether the engine should keep stepping without requests."""
        return self._scheduler_side.busy

    def get_kv_connector_stats(self) -> KVConnectorStats | None:
        """The scheduler side's report. The worker side has none."""
        if self.role is not KVConnectorRole.SCHEDULER:
            return None
        report = self._scheduler_side.report()
        return self._publish(report) if report is not None else None

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> KVConnectorStats | None:
        """The packed report, as it left the engine."""
        return ReportStats(data=data or {})

    # Worker-side

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        """Learn the layout of the engine's KV cache, and open the tiers."""
        num_blocks = self._kv_cache_config.num_blocks
        blocks = PagedBlocks(kv_caches, num_blocks, self._page_tokens, self._write_tokens)
        kv_fingerprint = fingerprint(self._vllm_config, blocks.layout)
        tiers = open_tiers(self._settings, kv_fingerprint, self._page_tokens, blocks.page_bytes)
        memory = measure_memory(self._settings, kv_fingerprint, blocks, num_blocks, tiers)
        self._opened_worker_side = WorkerSide(blocks, tiers, memory, self._settings.loader_threads)

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:  # noqa: ANN401, ARG002
        """Carry out the step's loads, before its forward pass."""
        self._worker_side.load(self._jobs)

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Do nothing: loads are done before the forward pass, or belong to requests outside of it."""

    def save_kv_layer(self, layer_name: str, kv_layer: torch.Tensor, attn_metadata: Any, **kwargs: Any) -> None:  # noqa: ANN401
        """Do nothing: whole nodes are saved out of the blocks, after the forward pass."""

    def wait_for_save(self) -> None:
        """Start the step's transfers after its forward pass. They run during the next ones."""
        self._worker_side.transfer(self._jobs)
        self._worker_side.pause(self._jobs)

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:  # noqa: ARG002
        """The requests whose background load has ended."""
        return None, self._worker_side.take_loaded() or None

    def get_block_ids_with_load_errors(self) -> set[int]:
        """The blocks that could not be loaded."""
        return self._worker_side.take_failed()

    def build_connector_worker_meta(self) -> StepResults | None:
        """The worker side's other results."""
        return self._worker_side.take_results()

    # Messages in and reports out. They cross the process border, unless an in-process planner overrides these methods.

    def _message_of(self, request: "Request") -> RequestMessage | None:
        """The message that a request carries."""
        try:
            return RequestMessage.from_parameters(request.kv_transfer_params)
        except msgspec.ValidationError as error:
            log.warning("message_unreadable", request=request.request_id, error=str(error))
            return None

    def _publish(self, report: EngineReport) -> KVConnectorStats | None:
        """Pass a report on. Returns the stats that leave the engine."""
        return ReportStats.of(report)

    @property
    def _worker_side(self) -> WorkerSide:
        assert self._opened_worker_side is not None, "the engine has not registered its KV cache"
        return self._opened_worker_side

    @property
    def _jobs(self) -> StepJobs:
        jobs = self._get_connector_metadata()
        assert isinstance(jobs, StepJobs)
        return jobs

    def _write_tokens(self, name: str, cache: torch.Tensor, tokens: int) -> None:
        """Let the attention backend write marked tokens into a cache of one block."""
        layer = self._vllm_config.compilation_config.static_forward_context[name]
        keys = marks(tokens, layer.num_kv_heads, layer.head_size, cache)
        slots = torch.arange(tokens, dtype=torch.int64, device=cache.device)
        layer.impl.do_kv_cache_update(layer, keys, keys.clone(), cache, slots)


def _check(vllm_config: "VllmConfig", kv_cache_config: "KVCacheConfig") -> None:
    parallel = vllm_config.parallel_config
    if parallel.tensor_parallel_size * parallel.pipeline_parallel_size > 1:
        raise ConfigError("RAGTree's connector supports one worker only: set tensor and pipeline parallelism to 1")
    if vllm_config.scheduler_config.async_scheduling:
        # With it, a failed load is known one step late, and vLLM emits a token that was computed on bad KV.
        raise ConfigError("RAGTree's connector does not support async scheduling: set --no-async-scheduling")
    if len(kv_cache_config.kv_cache_groups) != 1:
        raise ConfigError("RAGTree's connector does not support hybrid models, whose layers keep different kinds of KV")
