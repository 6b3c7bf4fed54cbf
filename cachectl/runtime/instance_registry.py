"""The generator's instances as the controller knows them: how they join, restart, retire and end."""

from collections.abc import Collection, Sequence, Set

from cachectl.runtime.deliveries import Deliveries
from cachectl.runtime.kv_reads import KvReads
from cachectl.runtime.leases import Leases
from cachectl.runtime.recovery import Recovery
from cachectl.scheduling.scheduler import Scheduler
from cachectl.tiers.location import KvStorage
from protocol.cache import RestoreResult
from protocol.kv import NO_PEERS, KvMemory, Peers, ResidencyReport
from protocol.tiers import Tier


class InstanceRegistry:
    """Adds, restarts and retires instances, and moves the requests that wait for them.

    ``boots`` maps each instance to the current life of its engine; plans carry it. ``failed`` counts the plans that
    ended with their instance. ``refused`` instances run, and get no plans: their KV is not that of the others. The
    ``tiers`` know what retired instances and which locations there are.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        leases: Leases,
        recovery: Recovery,
        deliveries: Deliveries,
        kv_reads: KvReads,
    ) -> None:
        self._scheduler = scheduler
        self.tiers = scheduler.tree.tiers
        self._leases = leases
        self._recovery = recovery
        self._deliveries = deliveries
        self._kv_reads = kv_reads
        self.boots: dict[str, str] = {}
        self.failed = 0
        self.refused: set[str] = set()

    @property
    def serving(self) -> Set[str]:
        """All instances but retired ones."""
        return self._scheduler.instances.present()

    def at(self, location: str) -> Set[str]:
        """The instances at a location, without retired ones."""
        return set(self.tiers.instances_at(location)) & self._scheduler.instances.present()

    def using(self, disk: str) -> Set[str]:
        """The instances that use a disk, without retired ones."""
        return set(self.tiers.instances_with(disk)) & self._scheduler.instances.present()

    def add_location(self, storage: KvStorage) -> None:
        """Add the location of a ``storage`` with empty tiers. A known one keeps its own, and so does a known disk."""
        _, host, disk = storage.capacities
        self.tiers.add_location(storage.location, host, disk, storage.arena(), storage.disk)

    def add(
        self,
        instance: str,
        boot: str,
        reports: Sequence[ResidencyReport],
        location: str = "",
        peers: Peers = NO_PEERS,
        *,
        kv_generator: bool = False,
    ) -> RestoreResult:
        """Let an instance at a known location take requests or, as a ``kv_generator``, work for those that wait.

        Its engine is in the life ``boot``, and its tiers hold what they report. ``peers`` says where it serves the
        location's KV, if it does. Raises what ``Recovery.restore`` raises; the instance is then added with empty tiers.
        """
        self.boots[instance] = boot
        self._scheduler.instances.add(instance, location, peers, kv_generator)
        try:
            return self._recovery.restore(reports, location)
        finally:
            self._leases.move_on()
            self._deliveries.start()

    def restart(
        self,
        instance: str,
        boot: str,
        reports: Sequence[ResidencyReport],
        location: str = "",
        peers: Peers = NO_PEERS,
    ) -> RestoreResult:
        """Replace an instance by its next life ``boot``. Its GPU holds what it reports and nothing else.

        Plans that ran there have failed, and their leases end. Requests that waited for it wait again, and it takes
        requests even if it was retired. Raises UnknownInstance, and what ``Recovery.restore`` raises; in the second
        case the instance has restarted with empty tiers.
        """
        self._kv_reads.forget(instance)
        self._scheduler.branches.forget(instance)
        failed, waiting = self._leases.restart(instance, location, peers)
        # Before anything can be refused: a bad report must not restart the instance again at every look.
        self.boots[instance] = boot
        self.failed += failed
        self._deliveries.discard_missed(instance)
        try:
            return self._recovery.restore(reports, location)
        finally:
            self._leases.wait_again(waiting)
            self._leases.move_on()
            self._deliveries.start()

    def retire(self, instance: str) -> None:
        """Give an instance no new requests, and forget it when its running requests have ended.

        Requests that wait for it move to another instance, as soon as there is one. Raises UnknownInstance.
        """
        self._scheduler.instances.retire(instance)
        self._leases.move_on()
        self.forget_ended()

    def reinstate(self, instance: str) -> None:
        """Let a retired instance that has not ended take requests again. Raises UnknownInstance."""
        self._leases.reinstate(instance)
        self._leases.move_on()
        self._deliveries.start()

    def forget_ended(self) -> None:
        """Remove retired instances whose requests have all ended."""
        for instance in self._scheduler.instances.ended():
            self._scheduler.instances.remove(instance)
            self._kv_reads.forget(instance)
            self._scheduler.branches.forget(instance)
            self._deliveries.discard_missed(instance)
            self.boots.pop(instance, None)


def kv_difference(others: KvMemory | None, own: KvMemory | None) -> str:
    """What the KV of an instance's ``own`` memory has other than that of all ``others``, and what to set.

    None is an engine that keeps no KV.
    """
    if others is None or own is None:
        return f"it keeps {'no ' if own is None else ''}KV, and the others do{' not' if others is None else ''}"
    if own.page_tokens != others.page_tokens:
        return (
            f"its blocks have {own.page_tokens} tokens, and those of the others {others.page_tokens}; "
            "set generator.engine_args.block_size"
        )
    if len(own.groups) != len(others.groups):
        return (
            f"its layers keep KV in {len(own.groups)} groups, and those of the others in {len(others.groups)}; "
            "set generator.engine_args.disable_hybrid_kv_cache_manager alike"
        )
    if own.page_bytes != others.page_bytes:
        return (
            f"its blocks are {own.page_bytes} bytes of {own.layout}, and those of the others {others.page_bytes} bytes "
            f"of {others.layout}; name one generator.dtype for all"
        )
    if own.layout != others.layout:
        return (
            f"its KV cache is {own.layout} on {own.device}, and that of the others {others.layout} on "
            f"{others.device}; they share KV with generator.kv.page_layout neutral and the same files of the model"
        )
    return "it has other files of the model, another tokenizer or prompt layout, or another number of ranks"


class DeletionFence:
    """Suspects the KV in all places, machines and disks, that the controller does not know.

    It may be of documents that were deleted while an instance that joins was away.

    While a controller starts, it knows the places of its predecessor, if that has left a snapshot. Without one, it
    cannot tell, and nothing is suspected then. ``started`` says whether it has.
    """

    def __init__(self) -> None:
        self._recalled: frozenset[str] = frozenset()
        self._suspects_places = False
        self.started = False

    def recall(self, places: Collection[str]) -> None:
        """Know the places of a former controller, and no others."""
        self._recalled, self._suspects_places = frozenset(places), True

    def start(self) -> None:
        """Note that the controller has started: from now on, it knows the places of its own instances."""
        self._recalled, self._suspects_places, self.started = frozenset(), True, True

    def suspected(self, instance: str, memory: KvMemory, known: InstanceRegistry | None) -> tuple[Tier, ...]:
        """The tiers of an instance whose KV may be of deleted documents. There are no ``known`` instances at first."""
        new_here = self.started and known is not None and instance not in known.boots
        new_machine, new_disk = (self._is_new(place, known) for place in (memory.shared, disk_of(memory)))
        if known is not None and memory.shared in known.tiers.locations:
            # It keeps the disk that it came with, even under another name.
            new_disk = False
        suspected = {Tier.GPU: new_here or new_machine, Tier.HOST: new_machine, Tier.DISK: new_disk}
        return tuple(tier for tier, is_suspected in suspected.items() if is_suspected)

    def _is_new(self, place: str, known: InstanceRegistry | None) -> bool:
        return (
            self._suspects_places and place not in self._recalled and (known is None or place not in known.tiers.places)
        )


def disk_of(memory: KvMemory) -> str:
    """The name of an instance's disk: its own, or else that of the machine."""
    return memory.disk or memory.shared
