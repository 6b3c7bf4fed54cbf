"""The shipped knowledge tree as a cache of branches: prompts find and leave trees in it instead of paths."""

from collections.abc import Callable

from benchmarks.graph.policies.forest import NAMESPACE, Forest
from cachectl.nodes.node import Node
from cachectl.policies.base import Arrival, ReplacementPolicy
from cachectl.tiers.move_batch import MoveBatch
from cachectl.tiers.tier_manager import Capacities
from cachectl.tree.knowledge_tree import KnowledgeTree

_INSTANCE = "simulated"


class BranchTree:
    """Keeps branches' KV in one tier of ``capacity`` tokens, behind their ancestors.

    Nodes, budget, eviction and policy are those that serve. Only the grant differs: the shipped one is of a path, and
    here a prompt has many. A prompt counts as one request of each of its branches. All of them are locked until it is
    served. ``cost(cached, new)`` gives the seconds of a prefill.
    """

    def __init__(self, policy: ReplacementPolicy, capacity: int, cost: Callable[[int, int], float]) -> None:
        self._tree = KnowledgeTree(policy, Capacities(capacity), [_INSTANCE], cost)
        self._cost = cost
        self._tick = 0

    def cached_tokens(self, forest: Forest) -> int:
        """The tokens of a prompt's branches whose KV is kept. Counts no access."""
        found = self._find(forest)
        return sum(node.tokens for node in found if node is not None)

    def prefill_seconds(self, forest: Forest, cached: int) -> float:
        """The seconds of a prompt's prefill behind so many tokens that are kept."""
        return self._cost(cached, forest.tokens - cached + forest.question_tokens)

    def serve(self, forest: Forest) -> int:
        """Serve a prompt: count its accesses, and keep what it computes as far as the policy has room for it.

        Returns the tokens that were found.
        """
        tree = self._tree
        policy, registry = tree.policy, tree.registry
        gpu = tree.tiers.gpu(_INSTANCE)
        found = self._find(forest)
        cached = sum(node.tokens for node in found if node is not None)
        missed = forest.tokens - cached
        self._tick += 1
        policy.begin(Arrival(self._tick, forest.keys, forest.branches, missed, tree.tiers.capacity))
        # The mean over all that the prompt computes, as when documents are served.
        seconds_per_token = self.prefill_seconds(forest, cached) / (missed + forest.question_tokens)
        batch = MoveBatch(_INSTANCE)
        root = registry.root(NAMESPACE)
        placed = list(found)
        locked = [node for node in found if node is not None]
        for node in locked:
            node.locks += 1
        for place, (key, branch, parent) in enumerate(zip(forest.keys, forest.branches, forest.parents, strict=True)):
            above = root if parent < 0 else placed[parent]
            if above is None:
                continue
            known = placed[place]
            node = known or Node(key, *branch, above)
            node.count_access(self._tick, 0.0, None)
            if known is not None:
                for copy in node.copies:
                    copy.cache.touch(copy)
                continue
            node.count_computation(seconds_per_token)
            if tree.tiers.eviction.make_room(node, gpu, (), batch):
                gpu.add(node, held=True)
                registry.attach(node)
                node.locks += 1
                locked.append(node)
                placed[place] = node
        # Children first, so that a leaf is offered before what it stands behind.
        for node in reversed(locked):
            node.locks -= 1
            for copy in node.copies:
                copy.cache.offer(copy)
        registry.keep_root(root)
        return cached

    def check_integrity(self) -> None:
        """Assert the tree's invariants."""
        for cache in self._tree.tiers:
            cache.check_integrity()

    def _find(self, forest: Forest) -> list[Node | None]:
        """The node of each branch that is kept."""
        nodes = self._tree.registry.nodes
        return [nodes.get(key) for key in forest.keys]
