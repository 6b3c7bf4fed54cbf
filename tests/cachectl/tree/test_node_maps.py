"""A node's children, copies and counts are those of dictionaries, however few or many there are."""

import pytest
from example_counts import examples
from histories import indices
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tree_cases import ask, tree_of

from cachectl.nodes.node import Copy, Node
from cachectl.policies import create_policy
from cachectl.policies.lookahead import Lookahead
from cachectl.tiers.tier_cache import TierCache
from protocol.tiers import Tier

POLICY = create_policy("LRU", Lookahead())
CACHES = [TierCache(Tier.HOST, 100, POLICY, location=f"machine-{number}") for number in range(20)]
caches = st.sampled_from(CACHES)


class NodeMachine(RuleBasedStateMachine):
    """Copies and children of one node come and go, against dictionaries."""

    def __init__(self) -> None:
        super().__init__()
        self.node = Node(b"node", "node", 1, Node(b"root", "root", 0, None))
        self.children: dict[str, Node] = {}
        self.copies: dict[TierCache, Copy] = {}
        # Copies of the children, removed ones included.
        self.below: list[Copy] = []

    @rule(chosen=st.lists(caches, unique=True))
    def add_copies(self, chosen: list[TierCache]) -> None:
        for cache in chosen:
            if cache not in self.copies:
                self.copies[cache] = copy = Copy(self.node, cache, held=True)
                self.node.add_copy(copy)

    @precondition(lambda self: self.copies)
    @rule(which=indices, count=st.integers(1, 20))
    def remove_copies(self, which: int, count: int) -> None:
        for _ in range(min(count, len(self.copies))):
            copy = self.copies.pop(list(self.copies)[which % len(self.copies)])
            assert self.node.remove_copy(copy) == 0

    @rule(content=st.sampled_from("abc"))
    def add_child(self, content: str) -> None:
        if content not in self.children:
            child = Node(content.encode(), content, 1, self.node)
            self.children[content] = child
            self.node.add_child(child)

    @precondition(lambda self: self.children)
    @rule(which=indices)
    def remove_child(self, which: int) -> None:
        self.node.remove_child(self.children.pop(sorted(self.children)[which % len(self.children)]))

    @precondition(lambda self: self.children)
    @rule(which=indices, cache=caches)
    def add_copy_of_child(self, which: int, cache: TierCache) -> None:
        child = self.children[sorted(self.children)[which % len(self.children)]]
        if child.copy_in(cache) is None:
            copy = Copy(child, cache, held=True)
            child.add_copy(copy)
            self.below.append(copy)

    @precondition(lambda self: self.below)
    @rule(which=indices)
    def remove_copy_of_child(self, which: int) -> None:
        copy = self.below.pop(which % len(self.below))
        assert copy.node.remove_copy(copy) == sum(other.cache is copy.cache for other in self.below)

    @invariant()
    def agrees(self) -> None:
        assert list(self.node.children) == list(self.children.values())
        assert [self.node.child_of(content) for content in "abcd"] == [self.children.get(content) for content in "abcd"]
        assert list(self.node.copies) == list(self.copies.values())
        assert [self.node.copy_in(cache) for cache in CACHES] == [self.copies.get(cache) for cache in CACHES]
        counts = {cache: sum(copy.cache is cache for copy in self.below) for cache in CACHES}
        assert self.node.below == {cache: count for cache, count in counts.items() if count}
        assert all(copy.children == counts[cache] for cache, copy in self.copies.items())


TestNode = NodeMachine.TestCase
TestNode.settings = settings(max_examples=examples(100), stateful_step_count=40, deadline=None)


def test_a_child_that_is_none_is_not_removed():
    root = Node(b"", "root", 0, None)
    root.add_child(Node(b"", "a", 1, root))
    with pytest.raises(AssertionError):
        root.remove_child(Node(b"", "a", 1, root))


def test_the_nodes_of_a_document_are_in_the_order_in_which_they_came():
    tree = tree_of(20, policy="FORESIGHT")
    paths = ("a", "ba", "ca")
    for path in paths:
        ask(tree, path)
    nodes = tree.registry.nodes_of("a")
    assert [node.path[0].content for node in nodes] == ["a", "b", "c"]
    assert [node.path[0].content for node in reversed(nodes)] == ["c", "b", "a"]
    assert [node.content for node in tree.registry.nodes_of("b")] == ["b"]
    assert not tree.registry.nodes_of("x")
    tree.delete("b")
    tree.delete("c")
    assert [len(node.path) for node in tree.registry.nodes_of("a")] == [1]
    tree.delete("a")
    assert not tree.registry.by_content
