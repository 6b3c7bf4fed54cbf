"""The worker-side calls of vLLM's connector contract, passed to the worker side, and a call for vLLM's worker."""

import dataclasses
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import msgspec
import structlog
import torch
from vllm.distributed.kv_transfer import get_kv_transfer_group, has_kv_transfer_group
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorRole,
)

from generator.composing.build import new_composers
from generator.connector import supported
from generator.connector.blocks.layout_map import BlockWriter, LatentWriter, LayerWriter
from generator.connector.blocks.open_blocks import layers_of, open_blocks, prefers_contiguous_blocks, required_layout
from generator.connector.blocks.paged_blocks import EngineCache, PagedBlocks
from generator.connector.engine_process import STEP_FILE
from generator.connector.refusal import REFUSAL_FILE, refusal_passed_on
from generator.connector.step_jobs import StepJobs, StepResults
from generator.connector.worker.compositions import Compositions
from generator.connector.worker.fingerprint import fingerprint
from generator.connector.worker.open_tiers import measure_memory, open_tiers
from generator.connector.worker.peering import Peering
from generator.connector.worker.step_loads import StepLoads
from generator.connector.worker.worker_side import WorkerSide
from generator.settings import KvSettings
from protocol.errors import ConfigError
from protocol.generation import ComposingInfo
from protocol.logs import configure_logging

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorTransferResults
    from vllm.v1.attention.backend import AttentionBackend
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

log = structlog.get_logger(__name__)

_MOVED_TOKENS = 1024
"""To measure how long moving takes. For few tokens, a GPU takes as long as launching its kernels does."""

_NOT_KV_SETTINGS = ("instance", "controller", "prompt_layout", REFUSAL_FILE, STEP_FILE)
_SAVES_ONLY_AFTER_FORWARD = not hasattr(KVConnectorBase_V1, "get_transfer_results")
"""Whether vLLM, as in 0.26, leaves out ``wait_for_save`` in a step that computes nothing."""


class WorkerConnector(KVConnectorBase_V1):  # type: ignore[misc]  # vLLM is untyped here
    """Opens the worker side over the engine's KV cache, and passes it vLLM's worker-side calls.

    ``kv_connector_extra_config`` has the fields of ``KvSettings``. Raises ConfigError for what is not ``supported``.
    """

    def __init__(self, vllm_config: "VllmConfig", role: KVConnectorRole, kv_cache_config: "KVCacheConfig") -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        if not structlog.is_configured():
            # The engine runs in its own process, whose standard output may carry the results of a command.
            configure_logging()
        supported.check(vllm_config, kv_cache_config)
        extra = self._kv_transfer_config.kv_connector_extra_config
        self._settings = KvSettings.model_validate(
            {name: value for name, value in extra.items() if name not in _NOT_KV_SETTINGS}
        )
        self._rank: int = vllm_config.parallel_config.rank
        self._paging = supported.paging_of(kv_cache_config)
        # vLLM makes one connector for each role, and calls ``register_kv_caches`` on the worker's only.
        self._opened_worker_side: WorkerSide | None = None
        self._blocks: PagedBlocks | None = None
        self._transfers_started = False

    @property
    def step_loads(self) -> StepLoads | None:
        """What loads out of host memory within steps, if there is any."""
        return self._worker_side.step_loads

    def shutdown(self) -> None:
        """Close the worker side."""
        if self._opened_worker_side is not None:
            self._opened_worker_side.close()

    @classmethod
    def get_required_kvcache_layout(cls, vllm_config: "VllmConfig") -> str | None:  # noqa: ARG003
        """The layout of the KV cache to ask for, if any."""
        return required_layout()

    @property
    def prefer_cross_layer_blocks(self) -> bool:
        """Whether to ask for one tensor for all layers, as vLLM 0.26 makes it."""
        return prefers_contiguous_blocks()

    def register_cross_layers_kv_cache(self, kv_cache: torch.Tensor, attn_backend: "type[AttentionBackend]") -> None:
        """Do as ``register_kv_caches``, with one tensor for all layers."""
        self.register_kv_caches(layers_of(kv_cache, attn_backend, self._kv_cache_config))

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        """Learn the layout of the engine's KV cache, and open the tiers."""
        with refusal_passed_on(self._vllm_config):
            self._opened_worker_side = self._open_worker_side(kv_caches)

    def take_runner(self, runner: "GPUModelRunner") -> tuple[ComposingInfo | None, str]:
        """Take the engine's model, to compose KV with.

        Returns how that is done, or None and why it is not possible.
        """
        assert self._blocks is not None
        try:
            num_blocks = self._kv_cache_config.num_blocks
            composers = new_composers(runner, self._blocks, num_blocks, self._settings)
            staged = self._blocks.stage(min(_MOVED_TOKENS // self._paging.page_tokens, num_blocks - 1))
            move_s = composers.documents.measure_move_s(staged)
        except ConfigError as error:
            log.info("kv_not_composable", reason=error.message)
            return None, error.message
        except Exception as error:
            # After any error, the engine still serves, and only composes nothing.
            log.exception("kv_not_composable")
            return None, f"composing failed at its start: {type(error).__name__}: {error}"
        documents, trees, no_trees, branch_tokens = composers
        self._worker_side.compose_with(Compositions(documents, trees, self._paging.page_tokens, runner.device))
        return ComposingInfo(move_s, documents.methods, no_trees, branch_tokens), ""

    def bind_connector_metadata(self, connector_metadata: KVConnectorMetadata) -> None:
        """Take the step's jobs, and start its loads in the background, which run beside the step's forward pass.

        vLLM calls ``start_load_kv`` too late for them: after the forward pass, which a CPU computes at once.
        """
        super().bind_connector_metadata(connector_metadata)
        self._transfers_started = False
        self._worker_side.load(self._jobs)

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:  # noqa: ANN401, ARG002
        """Make the copies that the step's forward pass needs, its loads from host memory among them."""
        self._worker_side.copy(self._jobs)

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Do nothing: the whole forward pass waits for what it needs."""

    def save_kv_layer(self, layer_name: str, kv_layer: torch.Tensor, attn_metadata: Any, **kwargs: Any) -> None:  # noqa: ANN401
        """Do nothing: whole nodes are saved out of the blocks, after the forward pass."""

    def wait_for_save(self) -> None:
        """Start the step's transfers after its forward pass. They run during the next ones."""
        self._transfers_started = True
        self._worker_side.compose(self._jobs)
        self._worker_side.transfer(self._jobs)
        self._worker_side.pause(self._jobs)

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:  # noqa: ARG002
        """The requests whose load has ended."""
        if _SAVES_ONLY_AFTER_FORWARD and not self._transfers_started:
            self.wait_for_save()
        return None, self._worker_side.take_loaded() or None

    def get_transfer_results(self, finished_req_ids: set[str]) -> "KVConnectorTransferResults":
        """The requests whose load has ended, and those of them that have to begin again."""
        results = super().get_transfer_results(finished_req_ids)
        failed = self._worker_side.take_failed_of(results.finished_recving)
        return dataclasses.replace(results, failed_recving=failed)

    def get_block_ids_with_load_errors(self) -> set[int]:
        """The blocks that could not be loaded."""
        return self._worker_side.take_failed()

    def build_connector_worker_meta(self) -> StepResults | None:
        """The worker side's other results."""
        results = self._worker_side.take_results()
        return StepResults({self._rank: results}) if results is not None else None

    def _open_worker_side(self, kv_caches: dict[str, torch.Tensor]) -> WorkerSide:
        num_blocks = self._kv_cache_config.num_blocks
        neutral = self._settings.page_layout == "neutral"
        # Some layers read the KV of another one, and have none of their own.
        registered = self._vllm_config.compilation_config.static_forward_context
        own = [name for name in kv_caches if getattr(registered[name], "kv_sharing_target_layer_name", None) is None]
        groups = [
            [name for name in own if name in group.layer_names] for group in self._kv_cache_config.kv_cache_groups
        ]
        keep_states = zip(groups, self._paging.groups, strict=True)
        # Of such a layer, vLLM registers the memory, and the layer knows the states in it.
        states = {name: registered[name].kv_cache for names, group in keep_states if group.states for name in names}
        layers = {name: kv_caches[name] for name in own if name not in states}
        blocks = open_blocks(EngineCache(layers, num_blocks, self._paging, self._writer_of, groups, states), neutral)
        self._blocks = blocks
        kv_fingerprint = fingerprint(self._vllm_config, blocks.layout)
        places = self._settings.places(self._rank, self._vllm_config.parallel_config.tensor_parallel_size)
        tiers = open_tiers(places, kv_fingerprint, blocks)
        gpu_pages = int(num_blocks * self._settings.gpu_share)
        attention = self._attention(layers)
        memory = measure_memory(places, kv_fingerprint, blocks, attention, gpu_pages, num_blocks, tiers)
        peering, key = None, self._settings.peers.key()
        if key is not None:
            peering = Peering(self._settings.peers, key, tiers, kv_fingerprint, blocks.page_bytes, self._rank)
            memory = msgspec.structs.replace(memory, peers=peering.peers)
        log.info(
            "kv_cache_opened",
            device=memory.device,
            layout=memory.layout,
            page_layout=self._settings.page_layout,
            page_bytes=memory.page_bytes,
            copies_per_page=blocks.copies_per_page,
            host_bytes_per_s=round(memory.host_bytes_per_s),
            disk_bytes_per_s=round(memory.disk_bytes_per_s),
        )
        return WorkerSide(blocks, tiers, memory, peering=peering)

    @property
    def _worker_side(self) -> WorkerSide:
        assert self._opened_worker_side is not None, "the engine has not registered its KV cache"
        return self._opened_worker_side

    @property
    def _jobs(self) -> StepJobs:
        jobs = self._get_connector_metadata()
        assert isinstance(jobs, StepJobs)
        return jobs

    def _writer_of(self, name: str) -> BlockWriter:
        """The attention backend's own way to write into a layer's cache."""
        layer = self._vllm_config.compilation_config.static_forward_context[name]
        groups = enumerate(self._kv_cache_config.kv_cache_groups)
        tokens = self._paging.group_tokens(next(number for number, group in groups if name in group.layer_names))
        if supported.is_latent(self._kv_cache_config):
            return LatentWriter(layer, tokens)
        dtype = self._vllm_config.model_config.dtype
        return LayerWriter(layer, tokens, dtype if supported.is_quantised(self._kv_cache_config) else None)

    def _attention(self, names: Iterable[str]) -> str:
        """The names of these layers' attention backends."""
        layers = self._vllm_config.compilation_config.static_forward_context
        return "/".join(sorted({layers[name].get_attn_backend().get_name() for name in names}))


def host_copies(vllm_config: "VllmConfig") -> StepLoads | None:
    """The host memory of this engine's worker side, if that is in this process and the engine's only one."""
    if vllm_config.parallel_config.tensor_parallel_size > 1 or not has_kv_transfer_group():
        return None
    worker = get_kv_transfer_group()
    return worker.step_loads if isinstance(worker, WorkerConnector) else None


class WorkerExtension:
    """Methods that vLLM adds to its worker class."""

    model_runner: "GPUModelRunner"

    def give_model_to_ragtree(self) -> tuple[ComposingInfo | None, str]:
        """Give the model to the connector. Returns how KV is composed, or None and why it is not."""
        connector: Any = get_kv_transfer_group()
        answer: tuple[ComposingInfo | None, str] = connector.take_runner(self.model_runner)
        return answer

    def unapplied_adapter_layers(self, number: int) -> list[str]:
        """The layers of a loaded adapter that vLLM passes over, because the model has none of these names.

        Those of experts are left out: vLLM stacks them under other names.
        """
        manager: Any = self.model_runner.lora_manager._adapter_manager
        layers = manager.get_adapter(number).loras
        return sorted(layer for layer in layers if layer not in manager.modules and ".experts" not in layer)
