"""What a plain vLLM takes from RAGTree by module and class name (docs/use-with-vllm.md); reading it needs no Ray."""

from cachectl.chunks import PolicyChunkRanking
from cachectl.cost import DeviceProfile
from cachectl.lookahead import Lookahead
from cachectl.policies.pgdsf import PrefixAwareGreedyDual
from generator.offloading_policy import RankedCachePolicy

# Only the ratios of its times matter.
_PROFILE = "a10g-7b"


class PgdsfCachePolicy(RankedCachePolicy):
    """PGDSF as an ``eviction_policy`` of vLLM's offloading connector.

    The cost of a pass is what it takes longer than one of its last token, which vLLM computes whatever it finds: with
    the launch in it, the few tokens of a question would seem dearer than any document's.
    """

    def __init__(self, cache_capacity: int) -> None:
        seconds = DeviceProfile.shipped(_PROFILE).prefill_seconds

        def cost(cached_tokens: int, new_tokens: int) -> float:
            return seconds(cached_tokens, new_tokens + 1) - seconds(cached_tokens + new_tokens, 1)

        super().__init__(cache_capacity, PolicyChunkRanking(PrefixAwareGreedyDual(Lookahead()), cost))
