"""The registry of nodes: which nodes the tree has, by key, by content and by namespace."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cachectl.nodes.keys import root_key
from cachectl.nodes.node import Node

if TYPE_CHECKING:
    from cachectl.policies.base import ReplacementPolicy
    from cachectl.tree.deletion_blocklist import DeletionBlocklist


class NodeRegistry:
    """``roots`` by namespace, ``nodes`` by key, and ``by_content`` the nodes of each document.

    ``detached`` are deleted nodes that plans still use, by key. The policy is told of each node that enters or leaves.
    If the tree ``composes``, nodes know the others of their document.
    """

    def __init__(self, policy: ReplacementPolicy, blocklist: DeletionBlocklist, *, composes: bool) -> None:
        self._composes = composes
        self._policy = policy
        self._blocklist = blocklist
        self.roots: dict[str, Node] = {}
        self.nodes: dict[bytes, Node] = {}
        self.detached: dict[bytes, Node] = {}
        self.by_content: dict[str, dict[Node, None]] = {}

    def find(self, key: bytes) -> Node | None:
        """A node of the tree, or a deleted one that a plan still uses."""
        return self.nodes.get(key) or self.detached.get(key)

    def root(self, namespace: str) -> Node:
        """The root of a namespace; a new one if it has none. ``keep_root`` decides whether it stays."""
        root = self.roots.get(namespace)
        if root is None:
            root = self.roots[namespace] = Node(root_key(namespace), namespace, 0, None)
        return root

    def keep_root(self, root: Node) -> None:
        """Keep a namespace's root while it has nodes, and no longer."""
        if root.children:
            self.roots[root.content] = root
        else:
            self.roots.pop(root.content, None)

    def attach(self, node: Node) -> None:
        """Add a node below its parent."""
        assert node.parent is not None
        node.parent.children[node.content] = node
        self.nodes[node.key] = node
        same_document = self.by_content.setdefault(node.content, {})
        same_document[node] = None
        if self._composes:
            node.same_document = same_document
        self._policy.entered(node)

    def detach(self, node: Node) -> None:
        """Remove a node from the tree."""
        node.detached = True
        assert node.parent is not None
        del node.parent.children[node.content]
        del self.nodes[node.key]
        same_content = self.by_content[node.content]
        del same_content[node]
        if not same_content:
            del self.by_content[node.content]
        self._policy.left(node)

    def forget_detached(self, node: Node) -> None:
        """Forget a deleted node that no plan uses any more. A later one may have its key meanwhile."""
        if self.detached.get(node.key) is node:
            del self.detached[node.key]

    def may_attach(self, parent: Node, content: str, key: bytes) -> bool:
        """Whether a new node for a document may be attached below a parent now.

        It may not if the tree has the document there with another length, if a plan still uses a deleted node of this
        key, or if the document is being deleted.
        """
        return not (
            content in parent.children or key in self.detached or self._blocklist.blocks(content, parent.root.content)
        )
