"""Prefills that no query waits for: carried out on an instance, and completed whatever becomes of them."""

import asyncio
from collections.abc import Callable
from typing import NamedTuple

import structlog

from cachectl.runtime.executor import Executor
from cachectl.runtime.instances.peer_reads import PeerReads
from cachectl.runtime.leases import Leases
from cachectl.scheduling.plan_translation import lost_at_peers, lost_copies
from protocol.errors import RagtreeError, UnknownPlan
from protocol.generation import PrefillResult
from protocol.plans import PrefillPlan
from protocol.tiers import Tier

_log = structlog.get_logger(__name__)


class EndedPrefill(NamedTuple):
    """How a prefill ended: its result, if any of it is kept, and the copies that turned out to be missing.

    These are ``lost`` at the instance's own location, and ``at_peers`` at others, by location.
    """

    prefill: PrefillResult | None
    lost: list[tuple[bytes, Tier]]
    at_peers: dict[str, list[tuple[bytes, Tier]]]
    failed: bool = False

    @property
    def prepared_tokens(self) -> int:
        """The tokens that were computed or loaded from slower tiers."""
        if self.prefill is None:
            return 0
        loaded = sum(tokens for tier, tokens in self.prefill.loaded.items() if tier is not Tier.GPU)
        return self.prefill.prompt_tokens - self.prefill.cached_tokens + loaded

    def gave_way(self, plan: PrefillPlan) -> bool:
        """Whether it ended early, because its part of the step was needed."""
        return not self.failed and (self.prefill is None or self.prefill.prompt_tokens < plan.prompt.token_count)


_FAILED = EndedPrefill(None, [], {}, failed=True)


class BackgroundPrefills:
    """Has the ``executor`` carry out leased plans, and completes their leases. Belongs to one event loop."""

    def __init__(self, leases: Leases, executor: Executor, peer_reads: PeerReads) -> None:
        self._leases = leases
        self._executor = executor
        self._peer_reads = peer_reads
        self._running: set[asyncio.Task[EndedPrefill]] = set()

    def start(self, plan: PrefillPlan, ended: Callable[[EndedPrefill], None]) -> asyncio.Task[EndedPrefill]:
        """Start a plan; cancelling the task ends it. ``ended`` is called at the end, once its lease is completed."""
        task = asyncio.get_running_loop().create_task(self._prefill(plan))
        self._running.add(task)

        # A callback, because a task that is cancelled before its first step runs none of its code.
        def complete(task: asyncio.Task[EndedPrefill]) -> None:
            outcome = _FAILED if task.cancelled() else task.result()
            if outcome.prefill is not None:
                # Before others are planned.
                self._peer_reads.lose(outcome.at_peers)
                self._peer_reads.record(plan.instance, outcome.prefill.peers)
            try:
                self._leases.complete(plan.query_id, outcome.prefill is not None, outcome.lost)
            except UnknownPlan:
                # Its lease has run out, or ended with its instance.
                outcome = _FAILED
            self._running.discard(task)
            ended(outcome)

        task.add_done_callback(complete)
        return task

    async def all_ended(self) -> None:
        """Wait until none runs, including those that start as others end."""
        while self._running:
            await asyncio.wait(set(self._running))

    async def _prefill(self, plan: PrefillPlan) -> EndedPrefill:
        try:
            prefill = await self._executor.prefill(plan)
            lost = prefill.lost if prefill is not None else ()
            return EndedPrefill(prefill, lost_copies(lost), lost_at_peers(lost))
        except RagtreeError as error:
            _log.warning("a background prefill failed", plan_id=plan.query_id, error=str(error))
        except Exception:
            _log.exception("a background prefill failed", plan_id=plan.query_id)
        return _FAILED
