"""The knowledge tree: which documents' KV is kept, after which documents, and in which tiers.

    root (tenant, model) ── system prompt ─┬─ D1 ─┬─ D2
                                           │      └─ D3        a node = one document after one path
                                           └─ D2 ─── D1        the same document elsewhere is another node

The tree is bookkeeping: it decides, reserves and writes ``Move``s; engines move the bytes. RAGCache, sections 4.1 and
5.1. All of it is synchronous, and its only clock is the time that requests bring along.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from cachectl.nodes.keys import child_key, path_keys
from cachectl.nodes.node import Node
from cachectl.policies.base import ReplacementPolicy
from cachectl.tiers.location import KvStorage
from cachectl.tiers.own_loads import OwnLoads
from cachectl.tiers.page_allocator import PageAllocator
from cachectl.tiers.peer_links import PeerLinks
from cachectl.tiers.pending_moves import drop
from cachectl.tiers.replication import Replication
from cachectl.tiers.tier_cache import TierCache
from cachectl.tiers.tier_manager import TierManager
from cachectl.tree.grant_book import GrantBook
from cachectl.tree.load_or_recompute import TreeCosts
from cachectl.tree.node_registry import NodeRegistry
from cachectl.tree.pins import Pins
from cachectl.tree.prefix_lookup import PrefixLookup
from cachectl.tree.snapshot import NodeRecord
from protocol.errors import ConfigError
from protocol.kv import HeldNode

FREQUENCY_WINDOW_S = 86_400.0
"""The seconds whose accesses a node's frequency counts in serving: a day."""


class KnowledgeTree:
    """The tree and its tiers: ``lookup`` finds cached prefixes, ``grants`` admits plans, ``tiers`` holds the copies.

    A plan loads what it finds if that is faster than computing it, by the ``costs``. The tree ``composes`` if prompts
    may be composed without asking for it. Frequencies count ``window_s`` seconds. The ``instances`` are at the location
    of the ``storage``, where ``arena`` hands out host memory's pages, if they have numbers. With ``write_through``,
    computed nodes are copied to slower tiers at once, and otherwise when they are evicted.

    Invariants, which the tests assert: a cache holds no node whose parent is neither there nor in a
    faster tier; no budget is exceeded; locked and pinned nodes stay; every node has a copy.
    """

    def __init__(
        self,
        policy: ReplacementPolicy,
        storage: KvStorage,
        instances: Iterable[str],
        costs: TreeCosts,
        window_s: float | None = None,
        *,
        arena: PageAllocator | None = None,
        composes: bool = False,
        write_through: bool = False,
    ) -> None:
        if window_s is not None and window_s <= 0:
            raise ConfigError(f"the frequency window must be longer than {window_s} s")
        self.policy = policy
        self.paging = storage.paging
        self.registry = NodeRegistry(policy, composes=composes)
        self.tiers = TierManager(
            policy,
            storage,
            self._forget,
            self.registry.find,
            arena,
            OwnLoads(costs.load),
            PeerLinks(costs.peer_token_s),
        )
        self.lookup = PrefixLookup(self.registry, self.tiers, costs)
        self._pins = Pins(self.tiers)
        self._replication = Replication(self.tiers)
        self.grants = GrantBook(
            policy,
            self.registry,
            self.tiers,
            self.lookup,
            self._replication,
            self._pins,
            window_s,
            storage.paging,
            write_through,
        )
        for instance in instances:
            self.tiers.add_instance(instance, storage.location)

    def reconsider(self, keys: Iterable[bytes]) -> None:
        """Update nodes that are needed less than before: a request that waited for them has left."""
        for key in keys:
            node = self.registry.nodes.get(key)
            if node is not None:
                for copy in node.copies:
                    copy.cache.reconsider(copy)

    # Instances

    def remove_instance(self, instance: str) -> list[str]:
        """Remove a lost instance with its GPU's copies and its grants; the queries of those grants.

        Raises UnknownInstance.
        """
        cache = self.tiers.gpu(instance)
        lost = [grant for grant in self.grants.open.values() if grant.instance == instance]
        for grant in lost:
            grant.revoked = True
            self.grants.complete(grant, kept=False)
        for node in self._all_nodes():
            copy = node.copy_in(cache)
            if copy is not None:
                self.tiers.removal.discard(copy, self.grants.tick, unused=True)
        for copy in self.tiers.remove_instance(instance):
            self.tiers.removal.discard(copy, self.grants.tick)
        return [grant.query_id for grant in lost]

    def remove_location(self, name: str) -> None:
        """Remove a location that has no instance any more, with all copies there. A disk of others keeps its own."""
        own = self.tiers.only_at(name)
        for node in self._all_nodes():
            for cache in own:
                copy = node.copy_in(cache)
                if copy is not None:
                    # Plans of other locations may lock its node. One that reads this copy finds nobody who serves it.
                    self.tiers.removal.discard(copy, self.grants.tick, unused=True, gone=True)
        for copy in self.tiers.remove_location(name):
            self.tiers.removal.discard(copy, self.grants.tick)

    # What operators do

    def pin(self, namespace: str, contents: Sequence[str]) -> None:
        """Keep a path until it is unpinned. Raises UnknownNode unless all of it is in the tree, and PinRefused."""
        self._pins.pin(self.registry.path(namespace, contents))

    def unpin(self, namespace: str, contents: Sequence[str]) -> None:
        """Take back a pin. Raises UnknownNode if the path is not in the tree, or not pinned."""
        self._pins.unpin(self.registry.path(namespace, contents))

    def delete(self, content: str, namespace: str | None = None) -> int:
        """Delete a document everywhere, with everything after it; the number of nodes.

        That is in a tenant's namespaces, those of adapters included, or in all. Nodes that a plan still uses are no
        longer found, and are removed when the plan is complete.
        """
        gone = 0
        for node in self.registry.nodes_in(content, namespace):
            if not node.detached:
                gone += self._delete(node)
        return gone

    def clear(self) -> int:
        """Delete everything, pins included; the number of nodes."""
        tops = [child for root in self.registry.roots.values() for child in root.children]
        return sum(self._delete(top) for top in tops)

    def persist(self) -> None:
        """Copy everything to disk that has room there, before all engines stop."""
        above: list[Node] = list(self.registry.roots.values())
        while above:
            below = [child for node in above for child in node.children]
            self._replication.persist(below)
            above = below

    # Rebuilding the tree

    def insert(self, held: HeldNode, cache: TierCache, record: NodeRecord | None = None) -> bool:
        """Register a copy that a cache is reported to hold; whether the tree has it now.

        ``record`` is what a former controller's snapshot says of the node. The copy is not registered if its cache is
        full, if its parent is not where it must be, if it is deleted or about to be dropped, or if its pages are taken.
        """
        contents, tokens = held.path, held.tokens
        root = self.registry.root(held.namespace)
        try:
            parent = root
            for content in contents[:-1]:
                above = parent.child_of(content)
                if above is None:
                    return False
                parent = above
            node = parent.child_of(contents[-1])
            if node is None:
                key = child_key(parent.key, contents[-1])
                if not self.registry.may_attach(parent, contents[-1], key):
                    return False
                node = Node(key, contents[-1], tokens, parent, self.paging)
                # Its cost then is unknown, so its cost now stands in.
                node.count_computation(self.lookup.prefill_seconds(node.prefix_tokens, tokens) / tokens)
                if record is not None:
                    node.recall(record.accesses, record.last_access, record.average_cost)
            if not self.tiers.insert(node, cache, held.pages):
                return False
            if node.key not in self.registry.nodes:
                self.registry.attach(node)
            return True
        finally:
            self.registry.keep_root(root)

    def refuse(self, held: HeldNode, cache: TierCache) -> None:
        """Order a copy to be dropped that a cache is reported to hold and the tree cannot register."""
        key = path_keys(held.namespace, held.path)[-1]
        node = self.registry.nodes.get(key)
        pages = held.pages if cache.allocator is not None else None
        # A drop must not hit what a plan is about to put there, or still uses there, or what is yet to be swapped out.
        unknown = key not in self.registry.detached and (node is None or node.copy_in(cache) is None)
        if unknown and not self.tiers.pending_moves.frees(key.hex(), cache):
            self.tiers.pending_moves.add(drop(key, held.tokens, cache, pages), cache.instance)
        if pages is not None and cache.allocator is not None:
            cache.allocator.see(pages.stamp)

    def _all_nodes(self) -> list[Node]:
        return [*self.registry.nodes.values(), *self.registry.detached.values()]

    def _forget(self, node: Node) -> None:
        """Forget a node that has no copy left."""
        if node.detached:
            self.registry.forget_detached(node)
            return
        if node.children:
            # Plans use what is left below, and nothing is found through this node any more.
            self._delete(node)
            return
        self._pins.unpin_above(node)
        node.pins = 0
        self.registry.detach(node)
        self.registry.keep_root(node.root)

    def _delete(self, top: Node) -> int:
        """Delete a node and everything below it; the number of nodes."""
        subtree = [top]
        for node in subtree:
            subtree += node.children
        self._pins.unpin_above(top)
        for node in reversed(subtree):
            self.registry.detach(node)
            if node.locks:
                self.registry.detached[node.key] = node
            for copy in list(node.copies):
                if node.locks:
                    copy.cache.withdraw(copy)
                else:
                    self.tiers.removal.remove_unused(copy)
        self.registry.keep_root(top.root)
        return len(subtree)
