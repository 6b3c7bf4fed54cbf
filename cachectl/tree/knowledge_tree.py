"""The knowledge tree: which documents' KV is kept, behind which documents, and in which caches.

    root (tenant, model) ── system prompt ─┬─ D1 ─┬─ D2
                                           │      └─ D3        a node = one document behind one path
                                           └─ D2 ─── D1        the same document elsewhere is another node

The tree is bookkeeping alone: it decides, reserves and writes orders (``Move``); others carry the bytes. RAGCache,
sections 4.1 and 5.1. All of it is synchronous and knows no clock but the time that requests bring along.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cachectl.policies.base import Arrival
from cachectl.tree.deletion_blocklist import DeletionBlocklist
from cachectl.tree.grant import Grant, GrantedDocument
from cachectl.tree.load_or_recompute import Loading, LoadOrRecompute
from cachectl.tree.node import Node, child_key, path_below, path_keys, root_key
from cachectl.tree.pins import Pins
from cachectl.tree.tier_manager import Capacities, TierManager
from protocol.errors import ConfigError, InvalidRequest, UnknownPlan
from protocol.tiers import Tier

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from cachectl.policies.base import ReplacementPolicy
    from cachectl.tree.grant import PathDocument
    from cachectl.tree.page_allocator import PageAllocator
    from cachectl.tree.snapshot import NodeRecord
    from cachectl.tree.tier_cache import Copy
    from protocol.kv import HeldNode


class KnowledgeTree:
    """The tree and its caches. ``cost(cached, new)`` gives the seconds of a prefill; frequencies count ``window_s``.

    What a plan finds is loaded where that takes less than to compute it, by ``load_seconds(tokens, tier)``, and always
    where that is None. Nodes take up whole pages of ``page_tokens`` tokens; ``arena`` hands out the host memory's, if
    they have numbers. ``write_through``: what is computed is copied to the slower tiers at once, and not when it is
    evicted.

    Invariants, asserted by ``cachectl.tree.integrity``: a cache holds no node whose parent is neither there nor in a
    faster tier; no budget is exceeded; what is locked or pinned stays; every node has a copy somewhere.
    """

    def __init__(
        self,
        policy: ReplacementPolicy,
        capacities: Capacities,
        instances: Iterable[str],
        cost: Callable[[int, int], float],
        window_s: float | None = None,
        *,
        load_seconds: Callable[[int, Tier], float] | None = None,
        page_tokens: int = 1,
        arena: PageAllocator | None = None,
        write_through: bool = False,
    ) -> None:
        if window_s is not None and window_s <= 0:
            raise ConfigError(f"the frequency window must be longer than {window_s} s")
        self.policy = policy
        self.tiers = TierManager(policy, capacities, self._forget, self._find, arena)
        self._pins = Pins(self.tiers)
        self.tick = 0
        self.roots: dict[str, Node] = {}
        self.nodes: dict[bytes, Node] = {}
        # Deleted nodes that plans still use, by their keys.
        self.detached: dict[bytes, Node] = {}
        self.grants: dict[str, Grant] = {}
        self.page_tokens = page_tokens
        self._cost = cost
        self._loading = LoadOrRecompute(cost, load_seconds)
        self._window_s = window_s
        self._write_through = write_through
        self._blocklist = DeletionBlocklist()
        self.by_content: dict[str, dict[Node, None]] = {}
        for instance in instances:
            self.tiers.add_instance(instance)

    # Lookup

    def match(self, namespace: str, contents: Iterable[str], instance: str) -> list[Copy]:
        """The longest cached prefix that an instance can use: each document's fastest copy. O(depth), reads only."""
        gpu = self.tiers.gpu(instance)
        found: list[Copy] = []
        node = self.roots.get(namespace)
        if node is None:
            return found
        for content in contents:
            node = node.children.get(content)
            if node is None or (copy := self.tiers.fastest(node, gpu)) is None:
                break
            found.append(copy)
        return found

    def hits(self, namespace: str, documents: Sequence[PathDocument], instance: str) -> list[Copy]:
        """What ``match`` finds, up to the first document whose length is another one than the tree knows."""
        found = self.match(namespace, [document.content for document in documents], instance)
        for index, copy in enumerate(found):
            if copy.node.tokens != documents[index].tokens:
                return found[:index]
        return found

    def loading(self, hits: Sequence[Copy], prompt_tokens: int) -> Loading:
        """How much of its ``hits`` a prompt of so many tokens should load."""
        return self._loading.choose(hits, prompt_tokens)

    def prefill_seconds(self, cached_tokens: int, new_tokens: int) -> float:
        """What a prefill of so many new tokens behind so many cached ones takes, by the cost model."""
        return self._cost(cached_tokens, new_tokens)

    def reconsider(self, keys: Iterable[bytes]) -> None:
        """Hear that nodes are needed less than was thought: a request that waited for them has left."""
        for key in keys:
            node = self.nodes.get(key)
            if node is not None:
                for copy in node.copies.values():
                    copy.cache.reconsider(copy)

    # The life of a grant

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
    ) -> Grant:
        """Lock what a request finds, count its accesses, and reserve room for what it loads or will compute.

        ``keys`` are the path's (``path_keys``), ``now`` is in seconds. The first ``pinned`` documents are pinned: the
        system prompt. Raises UnknownInstance, and InvalidRequest for a second grant of one query.
        """
        if query_id in self.grants:
            raise InvalidRequest(f"query {query_id} has a plan already")
        tokens = question_tokens + sum([document.tokens for document in documents])
        hits = self.hits(namespace, documents, instance)
        loaded, cached, _ = self._loading.choose(hits, tokens)
        computed = tokens - cached
        seconds_per_token = self._cost(cached, computed) / computed if computed else 0.0

        self.tick += 1
        self.policy.begin(Arrival(self.tick, keys, documents, computed - question_tokens, self.tiers.capacity))
        grant = Grant(query_id, instance, self.tick)
        grant.moves += self.tiers.take_moves(instance)
        root = self._root(namespace)
        self._lock(root, documents, grant)
        parent: Node | None = root
        for index, (document, key) in enumerate(zip(documents, keys, strict=True)):
            hit = index < loaded
            kept: Tier | None = None
            if parent is not None and index >= len(grant.locked) and self._in_the_way(parent, document.content, key):
                parent = None
            if parent is not None:
                if index < len(grant.locked):
                    node = grant.locked[index]
                else:
                    node = Node(key, *document, parent, self.page_tokens)
                node.count_access(self.tick, now, self._window_s)
                if not hit:
                    node.count_computation(seconds_per_token)
                for copy in node.copies.values():
                    copy.cache.touch(copy)
                kept = self.tiers.keep(node, instance, hit, grant.moves, grant.reserved)
                if node.copies and index == len(grant.locked):
                    self._attach(node)
                    node.locks += 1
                    grant.locked.append(node)
                if node.copies and index < pinned:
                    self._pins.pin_if_room(node)
                self.tiers.replicate(node, instance, grant.moves)
                parent = node if node.copies else None
            source = hits[index] if hit else None
            pages = source.pages if source is not None else None
            if source is None and kept is Tier.HOST and parent is not None:
                pages = parent.copies[self.tiers.host].pages
            tier = source.cache.tier if source is not None else None
            grant.documents.append(GrantedDocument(key, document.tokens, tier, kept, pages))
        self._keep_root(root)
        self.grants[query_id] = grant
        return grant

    def prefilled(self, grant: Grant, lost: Collection[tuple[bytes, Tier]] = ()) -> bytes | None:
        """Hear that a grant's prefill is done: what it reserved can be found from now on, though its locks stay.

        ``lost`` is what ``lose`` takes. Returns the key of the uppermost node that is new somewhere. Raises UnknownPlan
        for a grant that was settled; then nothing has changed.
        """
        reserved = self._claim(grant)
        for copy in reserved:
            # What it was to stand on may have been lost meanwhile.
            if self.tiers.supported(copy):
                copy.held = True
            else:
                self.tiers.discard(copy, self.tick)
        grant.prefilled = True
        self.lose(grant.instance, lost)
        if self._write_through:
            gpu = self.tiers.gpu(grant.instance)
            computed = {step.key for step in grant.documents if step.source is None}
            new = [copy.node for copy in reserved if copy.cache is gpu and copy.node.key in computed]
            self.tiers.write_through([node for node in new if not node.detached], grant.instance)
        return reserved[0].node.key if reserved else None

    def complete(self, grant: Grant, kept: bool, lost: Collection[tuple[bytes, Tier]] = ()) -> bytes | None:
        """End a grant: committed if ``kept``, otherwise what it still has reserved is given up; its locks are lifted.

        The orders of a grant that was never committed wait to be carried out again. Returns and raises what ``commit``
        does.
        """
        gained = None
        if kept:
            gained = self.prefilled(grant, lost)
        else:
            for copy in self._claim(grant):
                self.tiers.discard(copy, self.tick, unused=True)
            self.lose(grant.instance, lost)
            if not grant.prefilled:
                # With its instance the rest was carried out or not: who looks for a copy finds out.
                moves = [move for move in grant.moves if not grant.revoked or move.instance is None]
                self.tiers.return_moves(moves, grant.instance, grant.tick)
        grant.completed = True
        del self.grants[grant.query_id]
        for node in grant.locked:
            node.locks -= 1
        # Children before parents: what is taken out must not stand under anything.
        for node in reversed(grant.locked):
            self._let_go(node, grant)
        return gained

    def lose(self, instance: str, lost: Iterable[tuple[bytes, Tier]]) -> None:
        """Hear that copies of an instance, or of a shared tier, are not there, by node and tier.

        What only they support goes with them. Those that the tree knows nothing of (any more) are none of its concern,
        nor what an instance says of shared tiers that are out of its reach.
        """
        broken = []
        for key, tier in lost:
            node = self.nodes.get(key) if self.tiers.reaches(instance, tier) else None
            copy = node.copies.get(self.tiers.cache(tier, instance)) if node is not None else None
            if copy is not None:
                broken.append(copy)
        # Children before parents: what falls with its parent is ordered to be dropped, and these are gone already.
        broken.sort(key=lambda copy: copy.node.prefix_tokens, reverse=True)
        for copy in broken:
            if copy.node.copies.get(copy.cache) is copy:
                # Pages of host memory may name it still.
                self.tiers.discard(copy, self.tick, gone=copy.cache.tier is not Tier.HOST)

    def _let_go(self, node: Node, grant: Grant) -> None:
        """Take out what a settled grant was the last to use of a node; what it leaves may be evicted."""
        for copy in list(node.copies.values()):
            if copy.condemned and grant.tick <= copy.condemned:
                copy.users -= 1
            if (copy.condemned and not copy.users) or (node.detached and not node.locks):
                self.tiers.bury(copy)
            else:
                copy.cache.offer(copy)
        if not node.locks:
            self._see_off(node)

    def _claim(self, grant: Grant) -> list[Copy]:
        """What a grant has reserved, less what was condemned meanwhile, or went with an instance; once."""
        if grant.completed:
            raise UnknownPlan(f"the plan of query {grant.query_id} was completed before")
        reserved, grant.reserved = grant.reserved, []
        return [copy for copy in reserved if copy.node.copies.get(copy.cache) is copy and not copy.condemned]

    # Instances

    def add_instance(self, instance: str, isolated: bool = False) -> None:
        """Add an instance with an empty GPU tier; an ``isolated`` one reaches no shared tier. Keep a known one."""
        self.tiers.add_instance(instance, isolated)

    def lose_shared(self) -> None:
        """Hear that nobody reaches what the shared tiers held; whoever comes next has others, and nothing in them.

        Instances that are left, retired ones, are isolated from now on.
        """
        for node in [*self.nodes.values(), *self.detached.values()]:
            for cache in (self.tiers.host, self.tiers.disk):
                copy = node.copies.get(cache)
                if copy is not None:
                    # Plans that use it do so elsewhere: what comes now is other memory.
                    self.tiers.discard(copy, self.tick, unused=True, gone=True)
        self.tiers.pending_moves.lose_shared()
        for gpu in self.tiers.gpus.values():
            gpu.slower = None

    def remove_instance(self, instance: str) -> list[str]:
        """Forget an instance that is gone, with its GPU's copies and its grants; the queries of those grants.

        Raises UnknownInstance.
        """
        cache = self.tiers.gpu(instance)
        lost = [grant for grant in self.grants.values() if grant.instance == instance]
        for grant in lost:
            grant.revoked = True
            self.complete(grant, kept=False)
        for node in [*self.nodes.values(), *self.detached.values()]:
            copy = node.copies.get(cache)
            if copy is not None:
                self.tiers.discard(copy, self.tick, unused=True)
        self.tiers.remove_instance(instance, self.tick)
        return [grant.query_id for grant in lost]

    # What operators do

    def pin(self, namespace: str, contents: Sequence[str]) -> None:
        """Keep a path until it is unpinned. Raises UnknownNode unless all of it is in the tree, and PinRefused."""
        self._pins.pin(path_below(self.roots.get(namespace), contents))

    def unpin(self, namespace: str, contents: Sequence[str]) -> None:
        """Take a pin back. Raises UnknownNode if the path is not in the tree, or not pinned."""
        self._pins.unpin(path_below(self.roots.get(namespace), contents))

    def delete(self, content: str, namespace: str | None = None) -> int:
        """Drop a document everywhere it stands, with all that stands behind it, in one namespace or in all.

        Returns how many nodes went. What a plan still uses cannot be found any more, and goes when the plan is settled.
        """
        root = None if namespace is None else self.roots.get(namespace)
        gone = 0
        for node in list(self.by_content.get(content, ())):
            if not node.detached and (namespace is None or node.root is root):
                gone += self._delete(node)
        return gone

    def shun(self, content: str, namespace: str | None, shunned: bool = True) -> None:
        """Keep nothing of a document, in one namespace or in all, until that is taken back as often as it was said."""
        self._blocklist.count(content, namespace, 1 if shunned else -1)

    def clear(self) -> int:
        """Drop everything, pins too; how many nodes went."""
        return sum(self._delete(child) for root in list(self.roots.values()) for child in list(root.children.values()))

    def persist(self) -> None:
        """Have on disk what is anywhere, as far as there is room: before all engines stop."""
        above: list[Node] = list(self.roots.values())
        while above:
            below = [child for node in above for child in node.children.values()]
            self.tiers.persist(below)
            above = below

    def insert(self, held: HeldNode, tier: Tier, instance: str | None, recalled: NodeRecord | None = None) -> bool:
        """Take note of a node that a cache holds by its own account (``restore``); whether the tree has it now.

        ``recalled`` is what is known of it from the tree of a controller that is no more.
        It has not when the cache is full, when the node's parent is not where it must be, when it is (being) deleted
        and still to be dropped, or when the tree has other use for its pages.
        """
        contents, tokens = held.path, held.tokens
        cache = self.tiers.cache(tier, instance)
        root = self._root(held.namespace)
        try:
            parent = root
            for content in contents[:-1]:
                above = parent.children.get(content)
                if above is None:
                    return False
                parent = above
            node = parent.children.get(contents[-1])
            if node is None:
                key = child_key(parent.key, contents[-1])
                if self._in_the_way(parent, contents[-1], key):
                    return False
                node = Node(key, contents[-1], tokens, parent, self.page_tokens)
                # Nobody knows what it did cost; what it would cost now stands in for that.
                node.count_computation(self._cost(node.prefix_tokens, tokens) / tokens)
                if recalled is not None:
                    node.recall(recalled.accesses, recalled.last_access, recalled.average_cost)
            if not self.tiers.insert(node, cache, held.pages):
                return False
            if node.key not in self.nodes:
                self._attach(node)
            return True
        finally:
            self._keep_root(root)

    def refuse(self, held: HeldNode, tier: Tier, instance: str | None) -> None:
        """Order a copy to be dropped that a cache holds and the tree does not take note of."""
        key, cache = path_keys(held.namespace, held.path)[-1], self.tiers.cache(tier, instance)
        node = self.nodes.get(key)
        # What a plan is about to put there, or still uses there, must not be dropped under it.
        pages = held.pages if cache.allocator is not None else None
        if key not in self.detached and (node is None or cache not in node.copies):
            self.tiers.add_drop(key, held.tokens, cache, pages)
        if pages is not None and cache.allocator is not None:
            cache.allocator.see(pages.stamp)

    # Nodes come and go

    def _find(self, key: bytes) -> Node | None:
        """A node of the tree, or one that was deleted and is still in use."""
        return self.nodes.get(key) or self.detached.get(key)

    def _root(self, namespace: str) -> Node:
        root = self.roots.get(namespace)
        if root is None:
            root = self.roots[namespace] = Node(root_key(namespace), namespace, 0, None)
        return root

    def _keep_root(self, root: Node) -> None:
        """Hold on to a namespace while it has nodes, and no longer."""
        if root.children:
            self.roots[root.content] = root
        else:
            self.roots.pop(root.content, None)

    def _lock(self, root: Node, documents: Sequence[PathDocument], grant: Grant) -> None:
        """Lock the whole path at once: whoever makes room further down must not take what the path stands on."""
        node = root
        for document in documents:
            child = node.children.get(document.content)
            if child is None or child.tokens != document.tokens:
                break
            child.locks += 1
            grant.locked.append(child)
            node = child

    def _attach(self, node: Node) -> None:
        assert node.parent is not None
        node.parent.children[node.content] = node
        self.nodes[node.key] = node
        self.by_content.setdefault(node.content, {})[node] = None
        self.policy.entered(node)

    def _detach(self, node: Node) -> None:
        node.detached = True
        assert node.parent is not None
        del node.parent.children[node.content]
        del self.nodes[node.key]
        namesakes = self.by_content[node.content]
        del namesakes[node]
        if not namesakes:
            del self.by_content[node.content]
        self.policy.left(node)

    def _forget(self, node: Node) -> None:
        """Let go of a node that has no copy left."""
        if node.detached:
            self._see_off(node)
            return
        if node.children:
            # Plans use what is left below, and nobody will find it from here any more.
            self._delete(node)
            return
        self._pins.take_off_above(node)
        node.pins = 0
        self._detach(node)
        self._keep_root(node.root)

    def _see_off(self, node: Node) -> None:
        """Stop waiting for the end of a deleted node; another one of its key may have come and gone since."""
        if self.detached.get(node.key) is node:
            del self.detached[node.key]

    def _delete(self, top: Node) -> int:
        subtree = [top]
        for node in subtree:
            subtree += node.children.values()
        self._pins.take_off_above(top)
        for node in reversed(subtree):
            self._detach(node)
            if node.locks:
                self.detached[node.key] = node
            for copy in list(node.copies.values()):
                if node.locks:
                    copy.cache.withdraw(copy)
                else:
                    self.tiers.bury(copy)
        self._keep_root(top.root)
        return len(subtree)

    def _in_the_way(self, parent: Node, content: str, key: bytes) -> bool:
        """Whether a document cannot be kept behind a node now.

        The tree may know it with another length; it was deleted, and a plan still uses what was kept under this key; or
        it is being deleted.
        """
        return content in parent.children or key in self.detached or self._blocklist.has(content, parent.root.content)
