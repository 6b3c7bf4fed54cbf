"""Knowledge trees for tests: documents are letters, and paths are words.

A lower-case letter is a document of one token, and an upper-case letter is one of two tokens.
"""

import math
from collections.abc import Callable, Iterable, Sequence

from controller_integrity import check_integrity

from cachectl.nodes.keys import path_keys
from cachectl.nodes.node import PathDocument
from cachectl.policies import create_policy
from cachectl.policies.lookahead import Lookahead
from cachectl.tiers.location import Capacities, KvStorage
from cachectl.tiers.page_allocator import PageAllocator
from cachectl.tiers.pending_moves import MoveBatch
from cachectl.tiers.tier_cache import TierCache
from cachectl.tree.grant import Grant
from cachectl.tree.knowledge_tree import KnowledgeTree
from cachectl.tree.load_or_recompute import TreeCosts
from protocol.kv import Move, Pages, Paging, Peers
from protocol.tiers import Tier

TENANT = "tenant"
GPU, HOST, DISK = Tier


def rising_cost(cached: int, new: int) -> float:
    """Seconds of a prefill: a token costs more behind a longer prefix."""
    return 0.01 + new * (1 + cached / 10)


def linear_cost(cached: int, new: int) -> float:
    """Seconds of a prefill: one second per token."""
    return float(new)


def tree_of(
    gpu: int,
    host: int = 0,
    disk: int = 0,
    *,
    policy: str = "LRU",
    lookahead: Lookahead | None = None,
    instances: Iterable[str] = ("one", "two"),
    elsewhere: Iterable[str] = (),
    cost: Callable[[int, int], float] = rising_cost,
    window_s: float | None = None,
    load_s: float | None = None,
    page_tokens: int = 1,
    arena: PageAllocator | None = None,
    write_through: bool = False,
    serving: bool = False,
    peer_token_s: float = 0.0,
    disk_name: str = "",
) -> KnowledgeTree:
    """A tree with tiers of so many tokens. ``load_s`` are seconds per loaded token; None means that loads are free.

    The instances ``elsewhere`` are at a location of their own with this name, whose tiers are as large. If the disk has
    a name, it is that of both locations. If the instances are all ``serving``, each serves its location's KV at an
    address that ends with its name.
    """
    tree = KnowledgeTree(
        create_policy(policy, lookahead or Lookahead()),
        KvStorage(Capacities(gpu, host, disk), Paging(page_tokens), disk=disk_name),
        list(instances),
        TreeCosts(cost, None if load_s is None else lambda tokens, _: tokens * load_s, peer_token_s),
        window_s,
        arena=arena,
        write_through=write_through,
    )
    if elsewhere:
        there = PageAllocator(arena.capacity // page_tokens, page_tokens) if arena is not None else None
        tree.tiers.add_location("elsewhere", host, disk, there, disk_name)
    for instance in elsewhere:
        tree.tiers.add_instance(instance, "elsewhere")
    if serving:
        for instance, gpu in tree.tiers.gpus.items():
            tree.tiers.links.join(instance, tree.tiers.locations[gpu.location].places, serving_at(instance))
    return tree


def address_of(instance: str) -> str:
    """The address at which an instance serves."""
    return f"peer:{instance}"


def serving_at(instance: str, timeout_s: float = math.inf) -> Peers:
    """How an instance serves at its address, and waits for others."""
    return Peers((address_of(instance),), timeout_s)


def host_of(tree: KnowledgeTree, location: str = "") -> TierCache:
    """The host memory of a location."""
    return tree.tiers.locations[location].host


def disk_of(tree: KnowledgeTree, location: str = "") -> TierCache:
    """The disk of a location."""
    return tree.tiers.locations[location].disk


def paged_tree_of(gpu: int, host: int = 0, disk: int = 0, *, page: int = 1, **changes) -> KnowledgeTree:
    """A tree with tiers of so many pages, and numbered pages in host memory."""
    return tree_of(gpu * page, host * page, disk * page, page_tokens=page, arena=PageAllocator(host, page), **changes)


def tokens_of(content: str) -> int:
    return 2 if content.isupper() else 1


def begin(
    tree: KnowledgeTree,
    path: Sequence[str],
    instance: str = "one",
    namespace: str = TENANT,
    pinned: int = 0,
    tokens: Callable[[str], int] = tokens_of,
) -> Grant:
    """Admit a plan for a path. Its time is the number of its request."""
    documents = [PathDocument(content, tokens(content)) for content in path]
    tick = tree.grants.tick
    keys = path_keys(namespace, path)
    return tree.grants.admit(f"query {tick}", namespace, documents, keys, 1, instance, float(tick), pinned)


def ask(
    tree: KnowledgeTree,
    path: Sequence[str],
    instance: str = "one",
    namespace: str = TENANT,
    pinned: int = 0,
    tokens: Callable[[str], int] = tokens_of,
) -> Grant:
    """Admit a plan for a path, and complete it. All that it writes is written."""
    grant = begin(tree, path, instance, namespace, pinned, tokens)
    tree.grants.complete(grant, kept=True, unwritten=())
    check_integrity(tree)
    return grant


def found(tree: KnowledgeTree, path: Sequence[str], instance: str = "one", namespace: str = TENANT) -> list[Tier]:
    """The tier of each document in the cached prefix of a path."""
    return [copy.cache.tier for copy in tree.lookup.match(namespace, path, instance)]


def key(path: Sequence[str], namespace: str = TENANT) -> bytes:
    """The key of the last document of a path."""
    return path_keys(namespace, path)[-1]


def move(
    path: Sequence[str],
    source: Tier,
    target: Tier | None,
    instance: str | None = None,
    evict: bool = True,
    namespace: str = TENANT,
    pages: Pages | None = None,
) -> Move:
    """The move of a path's last document."""
    return Move(key(path, namespace).hex(), tokens_of(path[-1]), source, target, instance, evict, pages)


def take_pending_moves(tree: KnowledgeTree, instance: str = "one") -> list[Move]:
    """Have an instance take all its pending moves, without an answer from it."""
    batch = MoveBatch(instance)
    tree.tiers.take_moves(batch)
    tree.tiers.under_way.begin(batch)
    return batch.moves


def deliver(tree: KnowledgeTree, instance: str = "one", unwritten: Sequence[tuple[bytes, Tier]] = ()) -> list[Move]:
    """Have an instance carry out all its pending moves, and report the copies ``unwritten``."""
    batch = MoveBatch(instance)
    tree.tiers.take_moves(batch)
    tree.tiers.under_way.begin(batch)
    tree.tiers.confirm(batch, unwritten, tree.grants.tick)
    return batch.moves


def saves(grant: Grant) -> set[tuple[bytes, Tier]]:
    """The copies that a plan has to save: key and tier."""
    return {
        (bytes.fromhex(step.key), step.kept)
        for step in grant.documents
        if step.kept is not None and step.kept is not step.source
    }


def dump(tree: KnowledgeTree) -> dict[str, object]:
    """Everything that a tree knows, as plain data."""
    caches = {cache: (cache.tier, cache.instance) for cache in tree.tiers}
    nodes = {}
    for node in [*tree.registry.nodes.values(), *tree.registry.detached]:
        copies = {
            caches[copy.cache]: (copy.held, copy.priority, copy.entered, bool(copy.ticket)) for copy in node.copies
        }
        nodes[node.key, node.detached] = {
            "copies": copies,
            "children": sorted(child.content for child in node.children),
            "below": {caches[cache]: count for cache, count in node.below.items()},
            **{name: getattr(node, name) for name in ("content", "tokens", "locks", "pins", "frequency", "accesses")},
            **{name: getattr(node, name) for name in ("last_access", "average_cost", "computations", "prefix_tokens")},
        }
    return {
        "tick": tree.grants.tick,
        "roots": sorted(tree.registry.roots),
        "contents": {content: len(tree.registry.nodes_of(content)) for content in tree.registry.by_content},
        "nodes": nodes,
        "caches": {
            name: (cache.used, cache.copies, cache.clock, cache.inserted_tokens, cache.evictions, cache.pinned_tokens)
            for cache, name in caches.items()
        },
        "grants": {
            query_id: (grant.documents[:], grant.moves[:], len(grant.locked), len(grant.reserved), grant.completed)
            for query_id, grant in tree.grants.open.items()
        },
        "pending moves": list(tree.tiers.pending_moves),
    }
