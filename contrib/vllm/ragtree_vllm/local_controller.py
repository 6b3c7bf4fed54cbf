"""A controller for plain vLLM, which queues its requests itself."""

from collections.abc import Callable, Sequence

from cachectl.costs.device_profile import DeviceProfile
from cachectl.policies import create_policy
from cachectl.policies.lookahead import Lookahead
from cachectl.runtime.messages import lost_copies, request_of, spare_keys
from cachectl.scheduling.scheduler import Scheduler
from cachectl.settings import ControllerSettings, Swap
from cachectl.tiers.location import Capacities, KvStorage
from cachectl.tiers.page_allocator import PageAllocator
from cachectl.tree.knowledge_tree import FREQUENCY_WINDOW_S, KnowledgeTree
from cachectl.tree.load_or_recompute import TreeCosts
from cachectl.tree.restore import restore
from protocol.kv import KvMemory, LostCopy, ResidencyReport
from protocol.plans import PrefillPlan
from protocol.prompts import Prompt

# The engine has a queue of its own, so every request gets its plan at once.
_NO_BOUND = 1_000_000


class LocalController:
    """Leases plans to one engine in the same process. Synchronous: each request gets its plan at once.

    ``reports`` are what the engine's tiers hold. ``clock`` gives seconds on any monotonic scale. Pages are handed out
    under stamps from ``first_stamp`` on, and above every reported stamp. Prefill costs come from a shipped profile and
    only inform the policy: everything that is found is loaded.
    """

    def __init__(
        self,
        settings: ControllerSettings,
        instance: str,
        memory: KvMemory,
        reports: Sequence[ResidencyReport],
        clock: Callable[[], float],
        first_stamp: int,
    ) -> None:
        self._instance = instance
        self._clock = clock
        self._prefix = f"{memory.fingerprint}/"
        pages = (memory.gpu_pages, memory.host_pages, memory.disk_pages)
        lookahead = Lookahead()
        self._tree = KnowledgeTree(
            create_policy(settings.policy, lookahead),
            KvStorage(Capacities(*(count * memory.page_tokens for count in pages)), memory.paging),
            [instance],
            TreeCosts(DeviceProfile.shipped("a10g-7b").prefill_seconds),
            FREQUENCY_WINDOW_S,
            arena=PageAllocator(memory.host_pages, memory.page_tokens, first_stamp),
            write_through=settings.swap is Swap.WRITE_THROUGH,
        )
        self._scheduler = Scheduler(self._tree, lookahead, _NO_BOUND, 0, 0)
        restore(self._tree, [report.within(self._prefix) for report in reports])

    def admit(self, query_id: str, namespace: str, prompt: Prompt) -> PrefillPlan:
        """Lease a plan for a prompt. The segments before the first question may be kept.

        Raises InvalidRequest for a query that holds a plan.
        """
        request = request_of(query_id, self._prefix + namespace, prompt)
        grant = self._scheduler.admit(request, self._clock())
        assert grant is not None, "a request waits though nothing is bounded"
        return PrefillPlan(
            query_id,
            self._instance,
            namespace,
            prompt,
            nodes=tuple(grant.documents),
            moves=tuple(grant.moves),
            spare=spare_keys(self._tree, self._instance),
        )

    def prefilled(self, query_id: str, lost: Sequence[LostCopy]) -> None:
        """Record that a plan has its first token. ``lost`` are copies found missing. Raises UnknownPlan."""
        self._scheduler.prefilled(query_id, self._clock(), lost_copies(lost))

    def complete(self, query_id: str, kept: bool) -> None:
        """Release a plan. ``kept`` says whether it had its first token. Raises UnknownPlan."""
        # No other instance could find what is still being written, and this one waits for it.
        self._scheduler.complete(query_id, self._clock(), kept, unwritten=())
