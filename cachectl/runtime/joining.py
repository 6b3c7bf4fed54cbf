"""What is checked of an instance that joins: whose KV it has, and whether that may be of deleted documents."""

from collections.abc import Collection

from cachectl.runtime.instance_registry import InstanceRegistry
from protocol.kv import KvMemory
from protocol.tiers import Tier


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
            # It keeps the disk that it came with, whatever the disk is called now.
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
