"""A simulator of several controllers, and of machines that read each other's KV.

Each controller has a scheduler and a tree of its own. It sees only what it has sent to the engines itself.

A machine's link sends to one reader after the other, in the order in which their prefills are planned. A read that
would take longer than an engine waits sends nothing. So a machine with popular documents may be slow to read from. The
shipped classes learn that, and close links whose reads fail.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cachectl.runtime.kv_reads import KvReads
from cachectl.sharding.controller_shard import shard_of
from protocol.kv import KvRead
from ragtree_lab.controller.machines import TIMEOUT_S
from ragtree_lab.simulation.simulator import PREFILLED, SimulatedService, Simulator

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cachectl.costs.device_profile import DeviceProfile
    from cachectl.scheduling.scheduler import Scheduler
    from cachectl.tree.grant import Grant
    from protocol.plans import PlannedNode
    from ragtree_lab.workloads.workload import TraceRequest

_LATENCY_S = 0.002
"""What a read takes besides the bytes."""
_LOOK_S = 1.0
"""How often the controller looks after its links, as the live one does."""


class PeerSimulator(Simulator):
    """Serves one workload, as ``Simulator`` does. Prompts are not composed.

    The ``schedulers`` are the controllers', in the order of shards. Links carry ``link_bytes_per_s``. ``peer_tokens``
    were read over them. Of evictions and overtaking, the result has what concerns the controller of the last event.
    """

    def __init__(
        self, schedulers: Sequence[Scheduler], device: DeviceProfile, service: SimulatedService, link_bytes_per_s: float
    ) -> None:
        super().__init__(schedulers[0], device, service)
        self._schedulers = schedulers
        self._link_bytes_per_s = link_bytes_per_s
        self._now = 0.0
        self._looks_at_s = 0.0
        self._reads = [KvReads(scheduler.tree, lambda: self._now) for scheduler in schedulers]
        # When each machine's link has sent what is planned so far.
        self._link_free_s = dict.fromkeys(self._tree.tiers.locations, 0.0)
        # By query, until its prefill ends.
        self._shards: dict[str, int] = {}
        self._instances: dict[str, str] = {}
        self.peer_tokens = 0

    @property
    def failed_reads(self) -> int:
        """Reads that took longer than an engine waits for them."""
        return sum(reads.failures for reads in self._reads)

    def _arrive(self, query_id: str, traced: TraceRequest, now: float) -> None:
        """Have the shard of its first document decide on a request."""
        self._shards[query_id] = shard_of(traced.documents[0].id, len(self._schedulers))
        self._turn_to(query_id)
        super()._arrive(query_id, traced, now)

    def _turn_to(self, query_id: str) -> None:
        self._scheduler = self._schedulers[self._shards[query_id]]
        self._tree = self._scheduler.tree

    def _start(self, grant: Grant, now: float) -> None:
        """Count the plan's hits, and schedule its prefill for when the engine is free and everything is loaded."""
        self._now = now
        if now >= self._looks_at_s:
            self._looks_at_s = now + _LOOK_S
            for each in self._reads:
                each.look()
        reads = self._reads[self._shards[grant.query_id]]
        self._instances[grant.query_id] = grant.instance
        running = self._running[grant.query_id]
        begin = ready = max(now, self._engine_free_s[grant.instance])
        cached = 0
        loading = True
        for index, step in enumerate(grant.documents):
            if index >= running.system_documents:
                self._documents += 1
                self._tokens += step.tokens
            tier = step.loaded_from
            if tier is None or not loading:
                continue
            if step.peer is None:
                ready += self._device.load_seconds(step.tokens, tier)
            else:
                ready, loading = self._read(reads, grant.instance, step, ready, begin + TIMEOUT_S)
                if not loading:
                    # What is behind it is computed, too.
                    continue
            cached += step.tokens
            if index >= running.system_documents:
                self._hit_documents += 1
                self._hit_tokens[tier] += step.tokens
        computed = max(1, running.total_tokens - cached)
        end = ready + self._device.prefill_seconds(max(0, running.total_tokens - computed), computed)
        self._engine_free_s[grant.instance] = end
        self._at(end, PREFILLED, grant.query_id)

    def _read(self, reads: KvReads, instance: str, step: PlannedNode, begin: float, until: float) -> tuple[float, bool]:
        """Read a document at a peer, for no longer than ``until``; when that has ended, and whether all came."""
        peer, tokens = step.peer, step.tokens
        assert peer is not None
        seconds = tokens * self._device.kv_bytes_per_token / self._link_bytes_per_s
        sent = max(begin, self._link_free_s[peer.location]) + seconds
        end = sent + _LATENCY_S
        came = end <= until
        if came:
            self._link_free_s[peer.location] = sent
            self.peer_tokens += tokens
        else:
            end, tokens = until, 0
        reads.record(instance, [KvRead(peer.location, tokens, end - begin, failed=not came, tier=peer.tier)])
        return end, came

    def _prefilled(self, query_id: str, now: float) -> None:
        self._turn_to(query_id)
        super()._prefilled(query_id, now)

    def _finish(self, query_id: str, now: float) -> None:
        """End a request, and have what it computed copied to host memory, as the live controller does at once."""
        self._now = now
        self._turn_to(query_id)
        del self._shards[query_id]
        instance = self._instances.pop(query_id)
        super()._finish(query_id, now)
        if self._tree.tiers.has_moves(instance):
            batch = self._scheduler.deliver(instance)
            self._scheduler.delivered(batch, ())
