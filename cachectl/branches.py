"""Which branches of dependency trees the instances keep."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import NamedTuple

from cachectl.nodes.node import Node, PathDocument
from cachectl.policies.base import Arrival, ReplacementPolicy
from cachectl.policies.baselines import NoCache
from cachectl.policies.lookahead import Lookahead
from cachectl.tiers.location import Capacities, KvStorage
from cachectl.tiers.pending_moves import MoveBatch
from cachectl.tree.knowledge_tree import KnowledgeTree
from cachectl.tree.load_or_recompute import TreeCosts
from protocol.dependency import DependencyTrees, branch_keys


class KeyedBranch(NamedTuple):
    """A branch of ``tokens`` tokens, which the chunks with the content hashes ``stated_by`` state.

    ``parent`` is its parent's place among the prompt's branches, -1 for a root. Branches of one ``key`` have the same
    tokens after the same ancestors, in one namespace.
    """

    key: bytes
    tokens: int
    parent: int
    stated_by: tuple[str, ...] = ()


def keyed(namespace: str, trees: DependencyTrees, token_ids: Sequence[int]) -> tuple[KeyedBranch, ...]:
    """The branches of a prompt's ``trees``; the whole prompt has these ``token_ids``."""
    keys = branch_keys(namespace, trees, token_ids)
    return tuple(
        [
            KeyedBranch(key, branch.tokens, branch.parent, branch.stated_by)
            for key, branch in zip(keys, trees.branches, strict=True)
        ]
    )


_INSTANCE = "engine"
"""The tree's only instance: each engine has its own tree."""


class BranchTree:
    """A knowledge tree whose nodes are branches, in one tier of ``room`` tokens.

    Nodes, budget, eviction and ``policy`` are those of documents. Only the grant differs: a document's is of one path,
    and a prompt has many branches. It counts as one request of each. ``cost(cached, new)`` gives the seconds of
    a prefill.
    """

    def __init__(self, policy: ReplacementPolicy, room: int, cost: Callable[[int, int], float]) -> None:
        self._tree = KnowledgeTree(policy, KvStorage(Capacities(room)), [_INSTANCE], TreeCosts(cost))
        self._cost = cost
        self._tick = 0
        self._stated_by: dict[bytes, frozenset[str]] = {}

    def found(self, branches: Sequence[KeyedBranch]) -> int:
        """Return how many tokens of a prompt's branches are kept. Counts no access."""
        nodes = self._tree.registry.nodes
        return sum([branch.tokens for branch in branches if branch.key in nodes])

    def keep(self, namespace: str, branches: Sequence[KeyedBranch], question_tokens: int) -> list[bytes]:
        """Serve a prompt with ``question_tokens`` after its branches: count it, and keep what the policy has room for.

        Returns the keys of the branches that leave for it, leaves first.
        """
        tree = self._tree
        policy, registry, gpu = tree.policy, tree.registry, tree.tiers.gpu(_INSTANCE)
        cached = self.found(branches)
        missed = sum([branch.tokens for branch in branches]) - cached
        self._tick += 1
        keys = [branch.key for branch in branches]
        documents = [PathDocument(branch.key.hex(), branch.tokens) for branch in branches]
        policy.begin(Arrival(self._tick, keys, documents, missed, tree.tiers.capacity))
        new = missed + question_tokens
        # The mean over all that the prompt computes, as with documents.
        seconds_per_token = self._cost(cached, new) / new if new else 0.0
        batch = MoveBatch(_INSTANCE)
        root = registry.root(namespace)
        # Nothing of a prompt makes room for the rest of it.
        locked = [registry.nodes[key] for key in keys if key in registry.nodes]
        for node in locked:
            node.locks += 1
        for branch, document in zip(branches, documents, strict=True):
            key = branch.key
            above = root if branch.parent < 0 else registry.nodes.get(keys[branch.parent])
            if above is None:
                continue
            known = registry.nodes.get(key)
            node = known or Node(key, document.content, branch.tokens, above)
            node.count_access(self._tick, 0.0, None)
            if known is not None:
                self._stated_by[key] = self._stated_by[key].union(branch.stated_by)
                for copy in node.copies:
                    copy.cache.touch(copy)
                continue
            node.count_computation(seconds_per_token)
            if tree.tiers.eviction.make_room(node, gpu, (), batch):
                gpu.add(node, held=True)
                registry.attach(node)
                self._stated_by[key] = frozenset(branch.stated_by)
                node.locks += 1
                locked.append(node)
        # Children first, so that a leaf is offered before what it follows.
        for node in reversed(locked):
            node.locks -= 1
            for copy in node.copies:
                copy.cache.offer(copy)
        registry.keep_root(root)
        left = [bytes.fromhex(move.node) for move in batch.moves]
        for key in left:
            del self._stated_by[key]
        return left

    def take_back(self, branches: Sequence[KeyedBranch]) -> None:
        """Forget those of a prompt's branches that no other prompt has asked for: it was not computed."""
        nodes = self._tree.registry.nodes
        # Children first, so that a branch without any is a leaf.
        for branch in reversed(branches):
            node = nodes.get(branch.key)
            if node is not None and node.accesses == 1 and not node.children:
                self._delete(node)
        # The engine does not have them.
        self._tree.tiers.take_moves(MoveBatch(_INSTANCE))

    def reconsider(self, keys: Iterable[bytes]) -> None:
        """Update branches that are needed less than before: a request that waited for them has left."""
        self._tree.reconsider(keys)

    def delete(self, contents: Collection[str], namespace: str | None) -> None:
        """Forget what only chunks with these content hashes state, and what is below; in one namespace, or in all."""
        for key, stated_by in list(self._stated_by.items()):
            # It may have gone with the branch above it.
            if key not in self._stated_by or stated_by.isdisjoint(contents):
                continue
            node = self._tree.registry.nodes[key]
            if namespace is not None and node.root.content != namespace:
                continue
            left = self._stated_by[key] = stated_by.difference(contents)
            if not left:
                self._delete(node)
        # The engine is told by the deletion itself.
        self._tree.tiers.take_moves(MoveBatch(_INSTANCE))

    def _delete(self, top: Node) -> None:
        """Remove a branch and all below it."""
        going = [top]
        while going:
            node = going.pop()
            going += node.children
            del self._stated_by[node.key]
        self._tree.delete(top.content)


class KeptBranches:
    """The branches that each instance keeps, of at most ``room`` tokens, by a policy that ``create_policy`` creates.

    The KV itself lies with the engines, which drop what a plan tells them to. They find what they have, not what is
    expected here. If their own room is short, they drop the least recently used branches. ``cost(cached, new)`` gives
    the seconds of a prefill.
    """

    def __init__(
        self, create_policy: Callable[[], ReplacementPolicy], room: int, cost: Callable[[int, int], float]
    ) -> None:
        self._create_policy = create_policy
        self._room = room
        self._cost = cost
        self._trees: dict[str, BranchTree] = {}

    def found(self, instance: str, branches: Sequence[KeyedBranch]) -> int:
        """Return how many tokens of a prompt's branches the instance keeps."""
        tree = self._trees.get(instance)
        return 0 if tree is None else tree.found(branches)

    def keep(
        self, instance: str, namespace: str, branches: Sequence[KeyedBranch], question_tokens: int
    ) -> tuple[bytes, ...]:
        """Note that an instance computes these branches, or uses them, before a question of ``question_tokens``.

        They are in pre-order. Returns the keys of the branches that it drops for them.
        """
        if not branches or not self._room:
            return ()
        tree = self._trees.get(instance)
        if tree is None:
            tree = self._trees[instance] = BranchTree(self._create_policy(), self._room, self._cost)
        return tuple(tree.keep(namespace, branches, question_tokens))

    def take_back(self, instance: str, branches: Sequence[KeyedBranch]) -> None:
        """Forget what an instance was to compute for a prompt and did not, unless others have asked for it since."""
        tree = self._trees.get(instance)
        if tree is not None:
            tree.take_back(branches)

    def reconsider(self, keys: Sequence[bytes]) -> None:
        """Update branches that are needed less than before: a request that waited for them has left."""
        for tree in self._trees.values():
            tree.reconsider(keys)

    def forget(self, instance: str) -> None:
        """Forget what an instance kept: it has ended, or its engine has."""
        self._trees.pop(instance, None)

    def delete(self, contents: Collection[str], namespace: str | None) -> None:
        """Forget what only chunks with these content hashes state, in one namespace, or in all: engines drop it."""
        for tree in self._trees.values():
            tree.delete(contents, namespace)

    def clear(self) -> None:
        """Forget all branches: engines drop everything."""
        self._trees.clear()


NO_BRANCHES = KeptBranches(lambda: NoCache(Lookahead()), 0, lambda _cached, _new: 0.0)
"""Instances that keep none."""
