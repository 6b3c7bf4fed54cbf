"""The grant book: what plans hold of the tree, from admission until they are complete."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from cachectl.nodes.node import Copy, Node, PathDocument
from cachectl.policies.base import Arrival, ReplacementPolicy
from cachectl.tiers.eviction import is_supported
from cachectl.tiers.replication import Replication
from cachectl.tiers.tier_manager import TierManager
from cachectl.tree.composed_path import Path, compose, peer_of, used_keys
from cachectl.tree.grant import Grant
from cachectl.tree.node_registry import NodeRegistry
from cachectl.tree.pins import Pins
from cachectl.tree.prefix_lookup import CachedPrefix, PrefixLookup
from protocol.errors import InvalidRequest, UnknownPlan
from protocol.kv import Paging
from protocol.plans import PlannedNode
from protocol.tiers import Tier


class GrantBook:
    """Admits plans to the tree, and keeps what they compute.

    ``admit`` locks what a plan finds and reserves room for the rest. After ``prefilled``, others find it; after
    ``complete``, other instances find what is confirmed of it in shared tiers. ``complete`` lifts the locks, and a plan
    that failed gives its room back. ``open`` are the grants that are not complete, by query.
    ``tick`` numbers requests. Frequencies count ``window_s`` seconds, or everything if that is None. Nodes take up
    whole pages, cut as ``paging`` says. With ``write_through``, computed nodes are copied to slower tiers at once.
    """

    def __init__(
        self,
        policy: ReplacementPolicy,
        registry: NodeRegistry,
        tiers: TierManager,
        lookup: PrefixLookup,
        replication: Replication,
        pins: Pins,
        window_s: float | None,
        paging: Paging,
        write_through: bool,
    ) -> None:
        self._policy = policy
        self._registry = registry
        self._tiers = tiers
        self._lookup = lookup
        self._replication = replication
        self._pins = pins
        self._window_s = window_s
        self._paging = paging
        self._write_through = write_through
        self.tick = 0
        self.open: dict[str, Grant] = {}

    def admit(
        self,
        query_id: str,
        namespace: str,
        documents: Sequence[PathDocument],
        keys: Sequence[bytes],
        question_tokens: int,
        instance: str,
        now: float,
        pinned: int = 0,
        prefix: CachedPrefix | None = None,
        recompute_share: float | None = None,
        ahead: bool = False,
    ) -> Grant:
        """Lock what a request finds, count its accesses, and reserve room for what it loads or computes.

        ``keys`` are the path's (``path_keys``), ``now`` is in seconds. The first ``pinned`` documents are pinned: the
        system prompt. ``prefix`` is what the request finds, if the caller has just looked it up. With a
        ``recompute_share``, documents may be composed. A load ``ahead`` of a request's turn counts no access, as the
        turn will, and takes no room from what waiting requests need. Raises UnknownInstance, and InvalidRequest for
        a second grant of one query.
        """
        if query_id in self.open:
            raise InvalidRequest(f"query {query_id} has a plan already")
        if prefix is None:
            prefix = self._lookup.cached_prefix(
                namespace, documents, instance, question_tokens, pinned, recompute_share
            )
        hits = prefix.copies
        loaded = prefix.loading.documents
        computed = prefix.computed
        seconds_per_token = (prefix.seconds - prefix.moving_s) / computed if computed else 0.0
        composing = prefix.composing

        root = self._registry.root(namespace)
        path = Path(root, documents, keys, hits[:loaded], pinned)
        # Composing leaves nothing that could be kept.
        indices = composing.exact(loaded) if composing is not None else range(len(documents))
        exact = path.part(indices)
        used = keys if composing is None else used_keys(path, composing, dict(zip(indices, exact.keys, strict=True)))

        self.tick += 1
        if not ahead:
            self._policy.begin(Arrival(self.tick, used, documents, computed - question_tokens, self._tiers.capacity))
        grant = Grant(query_id, instance, self.tick, computed, ahead)
        grant.fallback = prefix.fallback
        self._tiers.take_moves(grant)
        locked = _lock(exact, grant)
        for copy in composing.donors if composing is not None else ():
            if copy is not None:
                self._use_donor(copy, grant, now)
        granted = self._keep_path(exact, locked, grant, now, seconds_per_token)
        if composing is None:
            grant.documents = granted
        else:
            grant.recompute_share = recompute_share
            by_place = dict(zip(indices, granted, strict=True))
            compose(path, composing, by_place, grant, self._tiers.gpu(instance), self._tiers.links)
        if self._tiers.links.exist:
            self._tiers.links.plan(instance, grant.read_places)
        self._registry.keep_root(root)
        self._tiers.under_way.begin(grant)
        self.open[query_id] = grant
        return grant

    def _keep_path(
        self, path: Path, locked: Sequence[Node], grant: Grant, now: float, seconds_per_token: float
    ) -> list[PlannedNode]:
        """Count accesses to a path, whose known nodes are ``locked``, and reserve room for it."""
        granted: list[PlannedNode] = []
        gpu = self._tiers.gpu(grant.instance)
        parent: Node | None = path.root
        for index, (document, key) in enumerate(zip(path.documents, path.keys, strict=True)):
            hit = index < len(path.hits)
            known = index < len(locked)
            kept: Tier | None = None
            if parent is not None and not known and not self._registry.may_attach(parent, document.content, key):
                parent = None
            if parent is not None:
                node = locked[index] if known else Node(key, *document, parent, self._paging)
                if grant.ahead:
                    # No access, but recent: what is loaded for the next turn must not be evicted first.
                    node.last_access = self.tick
                else:
                    node.count_access(self.tick, now, self._window_s)
                if not hit:
                    node.count_computation(seconds_per_token)
                near = hit and gpu.reaches(path.hits[index].cache)
                kept = self._keep(node, known, near, index < path.pinned, grant)
                parent = node if node.copies else None
            source = path.hits[index] if hit else None
            peer = peer_of(source, gpu, self._tiers.links) if source is not None else None
            if peer is not None:
                # To this location it is new, like what is computed.
                source = None
            pages = source.pages if source is not None else None
            if source is None and kept is Tier.HOST and parent is not None:
                own = parent.copy_in(self._tiers.cache(Tier.HOST, grant.instance))
                assert own is not None, "what is kept has a copy"
                pages = own.pages
            tier = source.cache.tier if source is not None else None
            granted.append(PlannedNode(key.hex(), document.tokens, tier, kept, pages, peer=peer))
        return granted

    def prefilled(self, grant: Grant, lost: Collection[tuple[bytes, Tier]] = ()) -> bytes | None:
        """Make what a grant reserved findable: its prefill is done. Its locks stay.

        ``lost`` are missing copies, as ``lose`` takes them. Returns the key of the uppermost node with a new copy.
        Raises UnknownPlan for a complete grant; then nothing has changed.
        """
        reserved = self._take_reserved(grant)
        for copy in reserved:
            # The parent's copy may have been lost meanwhile.
            if is_supported(copy.node.parent, copy.cache, ()):
                copy.held = True
            else:
                self._tiers.removal.discard(copy, self.tick)
        grant.prefilled = True
        self.lose(grant.instance, lost)
        # Nobody but others wants what a KV generator computes.
        if self._write_through or grant.instance in self._tiers.kv_generators:
            gpu = self._tiers.gpu(grant.instance)
            granted = [*grant.documents, *grant.first.values()]
            # Documents that were read elsewhere are served there.
            computed = {each.key for each in granted if each.source is None and each.peer is None}
            new = [copy.node for copy in reserved if copy.cache is gpu and copy.node.key.hex() in computed]
            self._replication.write_through([node for node in new if not node.detached], grant.instance)
        return reserved[0].node.key if reserved else None

    def complete(
        self,
        grant: Grant,
        kept: bool,
        lost: Collection[tuple[bytes, Tier]] = (),
        unwritten: Collection[tuple[bytes, Tier]] | None = None,
    ) -> list[bytes]:
        """End a grant and lift its locks. If not ``kept``, what it still has reserved is given up.

        ``unwritten`` are the copies in shared tiers that it was to write and that are not there; None if some may still
        be written. The moves of a grant that was never prefilled become pending again. Returns the keys of nodes that
        more requests find now: the one of ``prefilled``, and those with copies that are confirmed for other instances.
        Raises what ``prefilled`` does.
        """
        gained: list[bytes] = []
        if kept:
            uppermost = self.prefilled(grant, lost)
            if uppermost is not None:
                gained.append(uppermost)
        else:
            for copy in self._take_reserved(grant):
                self._tiers.removal.discard(copy, self.tick, unused=True)
            self.lose(grant.instance, lost)
        # The moves of a lost instance end with it.
        if not grant.revoked:
            if not grant.prefilled:
                self._tiers.under_way.give_back(grant, grant.tick)
            elif unwritten is None:
                self._tiers.under_way.ask_for_copies(grant)
            else:
                gained += self._tiers.confirm(grant, unwritten, self.tick)
        grant.completed = True
        del self.open[grant.query_id]
        for node in grant.locked:
            node.locks -= 1
        # Children before parents: a copy that is removed must not support another.
        for node in reversed(grant.locked):
            self._unlock(node, grant)
        return gained

    def make_way(self, grant: Grant) -> None:
        """Leave a grant's moves to the plan that it gives way to, which may reach the instance first."""
        if not grant.prefilled:
            self._tiers.under_way.give_moves_back(grant, grant.tick)

    def lose(self, instance: str, lost: Iterable[tuple[bytes, Tier]]) -> None:
        """Remove copies that an instance reports missing, by node and tier, with what only they support.

        Unknown copies are ignored, and so is what a removed instance reports. A report about a copy that another
        instance is writing concerns an earlier copy of the node, so it is ignored too.
        """
        broken = []
        for key, tier in lost if instance in self._tiers.gpus else ():
            node = self._registry.nodes.get(key)
            copy = node.copy_in(self._tiers.cache(tier, instance)) if node is not None else None
            if copy is not None and (copy.writer is None or copy.writer == instance):
                broken.append(copy)
        # Children before parents: a child that falls with its parent would be dropped, but its KV is gone already.
        broken.sort(key=lambda copy: copy.node.prefix_tokens, reverse=True)
        for copy in broken:
            if copy.node.copy_in(copy.cache) is copy:
                # A report may be late, and the shared tiers may hold a newer copy. So they drop the node.
                self._tiers.removal.discard(copy, self.tick, gone=copy.cache.tier is Tier.GPU)

    def lose_at(self, place: str, lost: Iterable[tuple[bytes, Tier]]) -> None:
        """Remove copies that another location or disk was to serve and does not have. Unknown ones are ignored.

        Copies that are still there are dropped. A copy that is not confirmed is a later one than was asked for.
        """
        for key, tier in lost:
            node, cache = self._registry.nodes.get(key), self._tiers.shared_cache(tier, place)
            copy = node.copy_in(cache) if node is not None and cache is not None else None
            if copy is not None and copy.confirmed:
                self._tiers.removal.discard(copy, self.tick)

    def _use_donor(self, copy: Copy, grant: Grant, now: float) -> None:
        """Lock what donates a document's KV, and count an access to it: the document was asked for."""
        node = copy.node
        node.count_access(self.tick, now, self._window_s)
        for each in node.copies:
            each.cache.touch(each)
        # A prompt may have a document twice.
        if node not in grant.locked:
            node.locks += 1
            grant.locked.append(node)

    def _keep(self, node: Node, known: bool, hit: bool, pinned: bool, grant: Grant) -> Tier | None:
        """Reserve room for a node that a grant uses, and lock it; the fastest tier that holds it or will hold it.

        ``hit`` says that it is loaded from within the instance's own reach.
        """
        for copy in node.copies:
            copy.cache.touch(copy)
        kept = self._reserve(node, hit, grant)
        if node.copies and not known:
            self._registry.attach(node)
            node.locks += 1
            grant.locked.append(node)
        if node.copies and pinned:
            self._pins.pin_if_room(node)
        self._replication.replicate(node, grant)
        return kept

    def _reserve(self, node: Node, cached: bool, grant: Grant) -> Tier | None:
        """Reserve room for a node in the fastest cache that takes it; the fastest tier that holds it or will hold it.

        A node that a slower tier has ``cached`` is offered room in the GPU only. None: no cache takes the node.
        """
        gpu = self._tiers.gpu(grant.instance)
        cache = gpu
        while True:
            copy = node.copy_in(cache)
            if copy is not None and copy.held:
                if not cached:
                    # It is out of reach, or not confirmed. What the plan computes has no separate room.
                    return None
                if copy.writer is None or copy.writer == grant.instance:
                    return cache.tier
            offered = copy is None and not (cached and cache is not gpu)
            if offered and self._tiers.eviction.make_room(node, cache, grant.reserved, grant):
                copy = cache.add(node, held=False) if cache is gpu else cache.write(node, grant, held=False)
                grant.reserved.append(copy)
                return cache.tier
            if cache.slower is None:
                return None
            cache = cache.slower

    def _unlock(self, node: Node, grant: Grant) -> None:
        """Remove condemned copies that no other grant uses, and make the other copies evictable."""
        for copy in list(node.copies):
            if copy.condemned and grant.tick <= copy.condemned:
                copy.users -= 1
            if (copy.condemned and not copy.users) or (node.detached and not node.locks):
                self._tiers.removal.remove_unused(copy)
            else:
                copy.cache.offer(copy)
        if not node.locks:
            self._registry.forget_detached(node)

    def _take_reserved(self, grant: Grant) -> list[Copy]:
        """What a grant has reserved, without copies that were condemned or lost meanwhile; once."""
        if grant.completed:
            raise UnknownPlan(f"the plan of query {grant.query_id} was completed before")
        reserved, grant.reserved = grant.reserved, []
        return [copy for copy in reserved if copy.node.copy_in(copy.cache) is copy and not copy.condemned]


def _lock(path: Path, grant: Grant) -> list[Node]:
    """Lock the known part of a path at once, so that making room further down evicts none of it; its nodes."""
    node = path.root
    locked: list[Node] = []
    for document in path.documents:
        child = node.child_of(document.content)
        if child is None or child.tokens != document.tokens:
            break
        child.locks += 1
        locked.append(child)
        node = child
    grant.locked += locked
    return locked
