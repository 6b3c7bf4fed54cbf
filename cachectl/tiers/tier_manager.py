"""The tier manager: the tier caches of all instances and locations, and the moves that wait for each instance."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

from cachectl.nodes.node import Copy, Node
from cachectl.policies.base import ReplacementPolicy
from cachectl.tiers.eviction import CopyRemoval, Eviction, is_supported
from cachectl.tiers.location import KvStorage, Location
from cachectl.tiers.moves_under_way import MovesUnderWay
from cachectl.tiers.own_loads import OwnLoads
from cachectl.tiers.page_allocator import PageAllocator
from cachectl.tiers.peer_links import PeerLinks
from cachectl.tiers.pending_moves import MoveBatch, PendingMoves
from cachectl.tiers.tier_cache import TierCache
from protocol.errors import ConfigError, UnknownInstance
from protocol.kv import NO_PEERS, Pages, Peers
from protocol.tiers import Tier

_SMALL_PART = 0.5
"""Of the seconds that computing a node takes. If another location serves it within them, it is not swapped out here."""


class TierManager:
    """One GPU cache for each instance, and at each location a host memory and a disk that its instances share.

    A disk belongs to its location, unless it has its own name: then all locations with this disk share it.

    ``retired`` instances receive no new requests, and are removed when their last one ends. ``kv_generators`` receive
    none either: they only prefill documents of requests that wait for others.

    ``forget`` is called with each node that lost its last copy. ``find`` looks nodes up by key. The first location is
    that of the ``storage``, where ``arena`` hands out the pages of host memory. ``loads`` come from the tiers of
    an instance's own location, and ``links`` lead to other ones.
    ``removal`` and ``eviction`` remove copies and make room. All caches together hold ``capacity`` tokens.
    """

    def __init__(
        self,
        policy: ReplacementPolicy,
        storage: KvStorage,
        forget: Callable[[Node], None],
        find: Callable[[bytes], Node | None],
        arena: PageAllocator | None,
        loads: OwnLoads,
        links: PeerLinks,
    ) -> None:
        capacities = storage.capacities
        if capacities.gpu < 0:
            raise ConfigError(f"the tiers' capacities must not be negative: {capacities}")
        self._policy = policy
        self._find = find
        self.loads = loads
        self.links = links
        self._gpu_capacity = capacities.gpu if policy.keeps else 0
        # Each request asks for it, and there may be thousands of caches.
        self.capacity = 0
        self.locations: dict[str, Location] = {}
        self.disks: dict[str, TierCache] = {}
        self.add_location(storage.location, capacities.host, capacities.disk, arena, storage.disk)
        self.gpus: dict[str, TierCache] = {}
        self.retired: set[str] = set()
        self.kv_generators: set[str] = set()
        self.pending_moves = PendingMoves(self._copy_at)
        self.removal = CopyRemoval(self.pending_moves, self.gpus, forget)
        self.under_way = MovesUnderWay(self.pending_moves, self.removal)
        self.eviction = Eviction(policy, self.under_way.may_delete, self.removal, forget, self._serves)

    def __iter__(self) -> Iterator[TierCache]:
        """Every cache, the instances' own first."""
        yield from self.gpus.values()
        for location in self.locations.values():
            yield location.host
        yield from self.disks.values()

    def gpu(self, instance: str) -> TierCache:
        """An instance's own cache. Raises UnknownInstance."""
        cache = self.gpus.get(instance)
        if cache is None:
            raise UnknownInstance(f"there is no instance {instance!r}")
        return cache

    def location_of(self, instance: str) -> Location:
        """The location of an instance. Raises UnknownInstance."""
        return self.locations[self.gpu(instance).location]

    def cache(self, tier: Tier, instance: str) -> TierCache:
        """The cache of a tier that an instance uses. Raises UnknownInstance."""
        return self.gpu(instance) if tier is Tier.GPU else self.location_of(instance).cache(tier)

    def shared_cache(self, tier: Tier, place: str) -> TierCache | None:
        """The host memory or the disk of a place, which is a location or a disk; None if there is none."""
        location = self.locations.get(place)
        if location is not None:
            return location.cache(tier)
        return self.disks.get(place) if tier is Tier.DISK else None

    def reach(self, instance: str) -> tuple[str, str, str]:
        """The owners of the tiers within an instance's reach: itself, its location and its disk."""
        location, disk = self.location_of(instance).places
        return instance, location, disk

    def free(self, instance: str) -> int:
        """Tokens that fit into the tiers within an instance's reach without an eviction. Raises UnknownInstance."""
        location = self.location_of(instance)
        return sum([cache.capacity - cache.used for cache in (self.gpu(instance), location.host, location.disk)])

    def fastest(self, node: Node, gpu: TierCache) -> Copy | None:
        """A node's fastest copy for the instance with this GPU: one in its reach, confirmed or written by itself."""
        cache: TierCache | None = gpu
        while cache is not None:
            copy = node.copy_in(cache)
            if copy is not None and copy.held and (copy.writer is None or copy.writer == gpu.instance):
                return copy
            cache = cache.slower
        return None

    def at_peers(self, node: Node, gpu: TierCache) -> Copy | None:
        """A node's fastest copy at another location, of those that the instance with this GPU can read from."""
        best: Copy | None = None
        for copy in node.copies:
            cache = copy.cache
            away = cache.instance is None and not gpu.reaches(cache)
            if away and copy.confirmed and self.links.serves(cache.location, gpu.owner):
                best = copy if best is None or cache.rank < best.cache.rank else best
        return best

    def _serves(self, node: Node, gpu: TierCache) -> bool:
        """Whether the host memory of another location serves a node in a small part of what computing it takes."""
        if not self.links.exist:
            return False
        copy = self.at_peers(node, gpu)
        if copy is None or copy.cache.tier is not Tier.HOST:
            return False
        read_s = self.links.seconds(gpu.owner, copy.cache.location, node.room, Tier.HOST)
        return read_s <= _SMALL_PART * node.average_cost * node.tokens

    def insert(self, node: Node, cache: TierCache, pages: Pages | None) -> bool:
        """Register a copy that a tier holds already; False if it is unsupported, does not fit, or is to be dropped.

        ``pages`` are its pages in host memory, and must be free. Other tiers ignore them.
        """
        if cache.allocator is None:
            pages = None
        copy = node.copy_in(cache)
        if copy is not None:
            there = copy.held and copy.pages == pages
            if there and copy.writer == "":
                cache.pass_on(copy, None)
            return there
        if (
            self.pending_moves.frees(node.key.hex(), cache)
            or (cache.tier is Tier.DISK and self.under_way.may_delete(node, cache))
            or cache.used + node.room > cache.capacity
            or not is_supported(node.parent, cache, ())
        ):
            return False
        if cache.allocator is not None and (pages is None or not cache.allocator.take_over(pages, node.room)):
            return False
        cache.add(node, held=True, pages=pages)
        return True

    # Locations and instances

    def add_location(
        self, name: str, host: int, disk: int, arena: PageAllocator | None = None, disk_name: str = ""
    ) -> None:
        """Add a location with empty tiers of ``host`` and ``disk`` tokens. A known one keeps its own.

        So does a known disk with the name ``disk_name``. ``arena`` hands out its pages of host memory. Raises
        ConfigError for sizes that cannot be.
        """
        if min(host, disk) < 0:
            raise ConfigError(f"the tiers' capacities must not be negative: {host} and {disk}")
        if name in self.locations:
            return
        place = disk_name or name
        if place not in self.disks:
            capacity = disk if self._policy.keeps else 0
            self.disks[place] = TierCache(Tier.DISK, capacity, self._policy, location=place)
            self.capacity += capacity
        self.locations[name] = Location(name, host, self.disks[place], self._policy, arena)
        self.capacity += self.locations[name].host.capacity

    @property
    def places(self) -> set[str]:
        """The names of all locations and disks. A disk without its own name has that of its location."""
        return {*self.locations, *self.disks}

    def only_at(self, location: str) -> list[TierCache]:
        """The shared tiers of a location that no other one has."""
        own = self.locations[location]
        others = [other for other in self.locations.values() if other is not own]
        return [own.host] if any(other.disk is own.disk for other in others) else [own.host, own.disk]

    def remove_location(self, name: str) -> list[Copy]:
        """Remove a location with its pending moves; the copies on a disk of others that these were to make.

        It has no instance any more, and what only it has is empty.
        """
        own = self.only_at(name)
        assert not any(cache.copies for cache in own)
        assert not self.instances_at(name)
        location = self.locations[name]
        places = location.places if location.disk in own else (name,)
        void = [move for place in places for move in self.pending_moves.lose_place(place)]
        unmade = [self.pending_moves.target(move) for move in void]
        for place in places:
            self.links.remove_place(place)
        del self.locations[name]
        self.capacity -= sum([cache.capacity for cache in own])
        if location.disk in own:
            del self.disks[location.disk.location]
        return [copy for copy in unmade if copy is not None]

    @property
    def deserted(self) -> list[str]:
        """The locations that have no instance, not even a retired one."""
        return [name for name in self.locations if not self.instances_at(name)]

    def instances_at(self, location: str) -> list[str]:
        """The instances at a location, retired ones included."""
        return [instance for instance, gpu in self.gpus.items() if gpu.location == location]

    def instances_with(self, disk: str) -> list[str]:
        """The instances that use a disk, retired ones included."""
        cache = self.disks.get(disk)
        return [instance for instance, gpu in self.gpus.items() if cache is not None and gpu.reaches(cache)]

    def add_instance(
        self, instance: str, location: str = "", peers: Peers = NO_PEERS, kv_generator: bool = False
    ) -> None:
        """Add an instance at a known location, with an empty GPU cache. A known instance keeps its own.

        ``peers`` says where it serves the location's KV, if it does. A ``kv_generator`` receives no requests.
        """
        if kv_generator:
            self.kv_generators.add(instance)
        self.links.join(instance, self.locations[location].places, peers)
        if instance not in self.gpus:
            below = self.locations[location].host
            self.gpus[instance] = TierCache(Tier.GPU, self._gpu_capacity, self._policy, instance, location, below)
            self.capacity += self._gpu_capacity

    def remove_instance(self, instance: str) -> list[Copy]:
        """Remove an instance whose cache is empty; the copies that it was to make, which may not exist."""
        assert not self.gpu(instance).copies
        self.under_way.lose(instance)
        unmade = [self.pending_moves.target(move) for move in self.pending_moves.lose(instance)]
        del self.gpus[instance]
        self.capacity -= self._gpu_capacity
        self.links.remove_instance(instance)
        self.retired.discard(instance)
        self.kv_generators.discard(instance)
        return [copy for copy in unmade if copy is not None]

    # Moves

    def take_moves(self, batch: MoveBatch) -> None:
        """Put all pending moves that a batch's instance can carry out into the batch. Raises UnknownInstance."""
        places = self.location_of(batch.instance).places
        if self.pending_moves:
            self.pending_moves.take(batch, places)

    def has_moves(self, instance: str) -> bool:
        """Whether an instance should be given its pending moves now.

        Without other instances, its own copies need no check: it finds them in any case.
        """
        places = self.location_of(instance).places
        return self.pending_moves.waits_for(instance, places, checks=len(self.gpus) > 1)

    def confirm(self, batch: MoveBatch, unwritten: Collection[tuple[bytes, Tier]], tick: int) -> list[bytes]:
        """End a batch that is carried out, but for the copies ``unwritten``; the keys that more instances find now."""
        return self.under_way.confirm(batch, unwritten, tick, alone=len(self.gpus) == 1)

    def _copy_at(self, key: str, tier: Tier, owner: str) -> Copy | None:
        node = self._find(bytes.fromhex(key))
        if node is None:
            return None
        cache = self.gpus.get(owner) if tier is Tier.GPU else self.shared_cache(tier, owner)
        return node.copy_in(cache) if cache is not None else None
