"""Which KV of an instance that joins may be of documents that were deleted while it was away."""

from collections.abc import Collection

from cachectl.runtime.instances.instance_registry import InstanceRegistry
from protocol.kv import KvMemory
from protocol.tiers import Tier


class DeletionFence:
    """Suspects the KV in all places, machines and disks, that the controller does not know.

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
        if known is not None and memory.shared in known.locations:
            # It keeps the disk that it came with, whatever the disk is called now.
            new_disk = False
        suspected = {Tier.GPU: new_here or new_machine, Tier.HOST: new_machine, Tier.DISK: new_disk}
        return tuple(tier for tier, is_suspected in suspected.items() if is_suspected)

    def _is_new(self, place: str, known: InstanceRegistry | None) -> bool:
        return self._suspects_places and place not in self._recalled and (known is None or place not in known.places)


def disk_of(memory: KvMemory) -> str:
    """The name of an instance's disk: its own, or else that of the machine."""
    return memory.disk or memory.shared
