"""The connector class that vLLM loads, and the stats in which its reports leave the engine's process.

Its scheduler-side calls are here, and its worker-side calls in ``worker_connector``.
"""

from typing import TYPE_CHECKING, Any

import msgspec
import structlog
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole, SupportsHMA
from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorStats

from generator.connector.engine_process import STEP_FILE, StepRecord, end_with_parent, exit_without_collecting
from generator.connector.messages import EngineReport, RequestMessage
from generator.connector.scheduler.fair_steps import FairSteps
from generator.connector.scheduler.scheduler_side import SchedulerSide
from generator.connector.step_jobs import StepJobs, StepResults
from generator.connector.supported import SERVES_GROUPS
from generator.connector.worker_connector import WorkerConnector, host_copies

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


class RagtreeConnector(WorkerConnector):
    """Keeps documents' KV across tiers for an unmodified vLLM, as the requests' plans say.

    ``kv_connector_extra_config`` has ``instance``, the name of this engine, and the fields of ``KvSettings``. Its
    ``controller`` entry is for an in-process planner. Raises ConfigError like ``WorkerConnector``.
    """

    def __init__(self, vllm_config: "VllmConfig", role: KVConnectorRole, kv_cache_config: "KVCacheConfig") -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        if role is KVConnectorRole.SCHEDULER:
            # Ranks end with the engine's process, which has this role.
            end_with_parent()
            exit_without_collecting()
        extra = self._kv_transfer_config.kv_connector_extra_config
        self.instance = str(extra.get("instance", "engine"))
        self.controller_settings: dict[str, Any] = dict(extra.get("controller", {}))
        scheduling = vllm_config.scheduler_config
        self._scheduler_side = SchedulerSide(
            self._paging,
            self.instance,
            scheduling.max_num_seqs,
            scheduling.max_num_batched_tokens,
            vllm_config.parallel_config.tensor_parallel_size,
            StepRecord(extra.get(STEP_FILE) if role is KVConnectorRole.SCHEDULER else None),
            FairSteps(scheduling) if role is KVConnectorRole.SCHEDULER else None,
            # vLLM 0.26 has no such figure, and no windows here.
            getattr(vllm_config, "max_in_flight_tokens", None),
        )

    @property
    def requires_kv_delivery(self) -> bool:
        """False: KV that is not saved is computed again."""
        return False

    def bind_gpu_block_pool(self, gpu_block_pool: "BlockPool") -> None:
        """Take the engine's block pool."""
        self._scheduler_side.bind(gpu_block_pool, host_copies(self._vllm_config))

    def on_new_request(self, request: "Request") -> None:
        """Register a request."""
        self._scheduler_side.admit(request, self._message_of(request))

    def get_num_new_matched_tokens(self, request: "Request", num_computed_tokens: int) -> tuple[int | None, bool]:
        """The number of tokens a request can load, and whether they load in the background."""
        return self._scheduler_side.match(request, num_computed_tokens)

    def tokens_to_node_end(self, request: "Request", start: int) -> int:
        """How many tokens after the first ``start`` ones a node to keep ends; 0 if none does.

        Called by ``NodeEndScheduler``, not by vLLM.
        """
        return self._scheduler_side.tokens_to_node_end(request, start)

    def update_state_after_alloc(self, request: "Request", blocks: "KVCacheBlocks", num_external_tokens: int) -> None:
        """Record a request's blocks."""
        self._scheduler_side.allocated(request, blocks.get_block_ids(), num_external_tokens)

    def build_connector_meta(self, scheduler_output: "SchedulerOutput") -> StepJobs:
        """The jobs of a step."""
        return self._scheduler_side.step_jobs(scheduler_output)

    def update_connector_output(self, connector_output: "KVConnectorOutput") -> None:
        """Take the worker side's results of a step."""
        results = connector_output.kv_connector_worker_meta
        if results is not None:
            assert isinstance(results, StepResults)
            self._scheduler_side.update(results)

    def request_finished(self, request: "Request", block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        """Record the end of a request. Its blocks are free at once, because transfers retain what they save."""
        return self.request_finished_all_groups(request, (block_ids,))

    def request_finished_all_groups(
        self,
        request: "Request",
        block_ids: tuple[list[int], ...],  # noqa: ARG002 - known step by step, also those that a window has passed
    ) -> tuple[bool, dict[str, Any] | None]:
        """Do as ``request_finished``, with the blocks of each group."""
        self._scheduler_side.complete(request)
        return False, None

    def has_pending_push_work(self) -> bool:
        """Whether the engine should keep stepping without requests."""
        return self._scheduler_side.busy

    def get_kv_connector_stats(self) -> KVConnectorStats | None:
        """The scheduler side's report, once vLLM has processed a step. The worker side has none."""
        if self.role is not KVConnectorRole.SCHEDULER:
            return None
        self._scheduler_side.end_step()
        report = self._scheduler_side.report()
        return self._publish(report) if report is not None else None

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> KVConnectorStats | None:
        """The packed report, as it left the engine."""
        return ReportStats(data=data or {})

    # These two cross the process border, unless an in-process planner overrides them.

    def _message_of(self, request: "Request") -> RequestMessage | None:
        """The message that a request carries."""
        try:
            return RequestMessage.from_parameters(request.kv_transfer_params)
        except msgspec.ValidationError as error:
            log.warning("message_unreadable", request=request.request_id, error=str(error))
            return None

    def _publish(self, report: EngineReport) -> KVConnectorStats | None:
        """Pass a report on. Returns the stats that leave the engine."""
        return ReportStats(data={"report": msgspec.to_builtins(report)})


if SERVES_GROUPS:
    # vLLM asks the class, and then makes a group of blocks for each kind of KV.
    SupportsHMA.register(RagtreeConnector)
