"""What lets a restarted controller continue: snapshots, and what tiers report."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress

from cachectl.runtime.adapters import Adapters
from cachectl.runtime.deliveries import Deliveries
from cachectl.runtime.messages import Namespaces
from cachectl.runtime.tombstones import Tombstones
from cachectl.scheduling.scheduler import Scheduler
from cachectl.sharding.controller_shard import WHOLE, ControllerShard
from cachectl.tree.restore import refuse, restore
from cachectl.tree.snapshot import EMPTY_SNAPSHOT, DeletionRecord, NodeRecord, Snapshot, SnapshotStore, record_of
from protocol.cache import RestoreResult
from protocol.errors import PinRefused, UnknownNode
from protocol.kv import ResidencyReport
from protocol.repeating import repeated

_NODES_WITHOUT_A_PAUSE = 500
"""About a millisecond's worth."""


class Recovery:
    """Takes snapshots of a controller, and rebuilds its tree from a snapshot and the tiers' reports.

    Tiers report the nodes of all shards. A ``shard`` restores its own.

    The tiers report what they hold. A snapshot adds what only the controller knows: uses, pins and deletions.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        tombstones: Tombstones,
        namespaces: Namespaces,
        deliveries: Deliveries,
        adapters: Adapters,
        shard: ControllerShard = WHOLE,
    ) -> None:
        self._adapters = adapters
        self._shard = shard
        self._scheduler = scheduler
        self._tree = scheduler.tree
        self._tombstones = tombstones
        self._namespaces = namespaces
        self._deliveries = deliveries
        # The former controller's nodes, until the tiers have reported, and those that are yet to be pinned.
        self._recalled: Mapping[str, NodeRecord] = {}
        self._to_pin: dict[str, NodeRecord] = {}

    async def snapshot(self) -> Snapshot:
        """What the next controller needs if this one is lost. Pauses regularly, so that queries are not delayed."""
        tick = self._tree.grants.tick
        deletions = tuple(DeletionRecord(*each) for each in self._tombstones.deletions())
        forgotten = self._tombstones.forgotten
        places = tuple(sorted(self._tree.tiers.places))
        records: dict[str, NodeRecord] = {}
        nodes = list(self._tree.registry.nodes.values())
        for begin in range(0, len(nodes), _NODES_WITHOUT_A_PAUSE):
            for node in nodes[begin : begin + _NODES_WITHOUT_A_PAUSE]:
                if not node.detached:
                    records[node.key.hex()] = record_of(node)
            await asyncio.sleep(0)
        return Snapshot(tick, records, deletions, places, forgotten, dict(self._adapters.added))

    def recall(self, snapshot: Snapshot) -> None:
        """Take over a former controller's snapshot. Call this before anything is restored."""
        self._tree.grants.tick = max(self._tree.grants.tick, snapshot.tick)
        self._recalled = snapshot.nodes
        self._to_pin = {key: record for key, record in snapshot.nodes.items() if record.pinned}
        deletions = ((one.content, one.namespace, one.gone_at) for one in snapshot.deletions if one.gone_at is not None)
        self._tombstones.recall(deletions, snapshot.forgotten)

    def restore(self, reports: Sequence[ResidencyReport], location: str = "") -> RestoreResult:
        """Add what tiers at a location report to the tree, with what the snapshot says of it.

        Nodes that belong to no shard any more are dropped. Raises UnknownInstance or InvalidRequest for a report that
        cannot be true; then nothing is restored.
        """
        inside, disowned = [], []
        for report in reports:
            own = report.only(self._shard.owns)
            self._namespaces.seen.update(held.namespace for held in own.nodes)
            inside.append(own.within(self._namespaces.prefix))
            disowned.append(report.only(self._shard.disowns).within(self._namespaces.prefix))
        result = restore(self._tree, inside, self._recalled, location)
        refuse(self._tree, disowned, location)
        self._pin_again()
        self._scheduler.reprioritise()
        self._deliveries.start()
        return result

    def forget_recalled(self) -> None:
        """End the recovery: all tiers have reported. Pins of nodes that were not restored are dropped."""
        self._recalled = {}
        self._to_pin = {}

    def _pin_again(self) -> None:
        """Pin what the former controller had pinned, and a tier has reported by now."""
        for key, record in list(self._to_pin.items()):
            with suppress(UnknownNode):
                with suppress(PinRefused):
                    for _ in range(record.pinned):
                        self._tree.pin(record.namespace, record.path)
                del self._to_pin[key]


_INTERVAL_S = 5.0


class SnapshotSaver:
    """Saves snapshots to a ``store``: every five seconds, and on demand.

    Only changes are written. The first save writes everything, because the state that a former controller left is
    unknown. So does the save after one that the store may have missed.
    """

    def __init__(self, recovery: Recovery, store: SnapshotStore) -> None:
        self._recovery = recovery
        self._store = store
        self._saved = EMPTY_SNAPSHOT
        self._lock = asyncio.Lock()

    async def save(self) -> None:
        """Save the current state."""
        if not self._store.keeps:
            return
        async with self._lock:
            now = await self._recovery.snapshot()
            saved = await self._store.keep(self._saved, now)
            self._saved = now if saved else EMPTY_SNAPSHOT

    @asynccontextmanager
    async def saving(self) -> AsyncIterator[None]:
        """Save at every interval while the context is open."""
        async with repeated(self.save, _INTERVAL_S):
            yield
