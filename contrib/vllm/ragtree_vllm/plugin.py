"""Classes that a plain vLLM loads by module and class name (contrib/vllm/README.md). They need no Ray."""

import time
from collections.abc import Sequence

from cachectl.costs.device_profile import DeviceProfile
from cachectl.policies.baselines import PrefixAwareGreedyDual
from cachectl.policies.lookahead import Lookahead
from cachectl.settings import ControllerSettings
from protocol.kv import KvMemory, ResidencyReport
from ragtree_vllm.chunk_ranking import PolicyChunkRanking
from ragtree_vllm.in_process_planner import PlanningConnector
from ragtree_vllm.local_controller import LocalController
from ragtree_vllm.offloading_policy import RankedCachePolicy

# Only the ratios between its times matter.
_PROFILE = "a10g-7b"


class PgdsfCachePolicy(RankedCachePolicy):
    """PGDSF as an ``eviction_policy`` of vLLM's offloading connector.

    The cost of a pass is its time beyond that of a pass over its last token alone, which vLLM computes in any case.
    With the fixed launch time included, a question's few tokens would look more expensive than any document's.
    """

    def __init__(self, cache_capacity: int) -> None:
        seconds = DeviceProfile.shipped(_PROFILE).prefill_seconds

        def cost(cached_tokens: int, new_tokens: int) -> float:
            return seconds(cached_tokens, new_tokens + 1) - seconds(cached_tokens + new_tokens, 1)

        super().__init__(cache_capacity, PolicyChunkRanking(PrefixAwareGreedyDual(Lookahead()), cost))


class RagtreeConnector(PlanningConnector):
    """The knowledge tree for one vLLM: a KV connector with its controller in the engine's own process.

    ``kv_connector_extra_config`` takes the options of ``generator.kv``, and under ``controller`` those of the
    controller.
    """

    def make_planner(self, memory: KvMemory, reports: Sequence[ResidencyReport]) -> LocalController:
        """Make the controller over the KV that the tiers hold.

        Page stamps start at the time of day, and above those that the reports name, so they rise across restarts.
        """
        settings = ControllerSettings.model_validate(self.controller_settings)
        return LocalController(settings, self.instance, memory, reports, time.monotonic, int(time.time() * 1e6))
