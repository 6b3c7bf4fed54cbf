"""The registry of nodes: which nodes the tree has, by key, by content and by namespace."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from cachectl.nodes.keys import root_key
from cachectl.nodes.node import Node
from cachectl.policies.base import ReplacementPolicy
from protocol.errors import UnknownNode
from protocol.kv import without_adapter


class NodeRegistry:
    """``roots`` by namespace, ``nodes`` by key, and ``by_content`` each document's node, or nodes if it had several.

    ``detached`` are deleted nodes that plans still use, by key. The policy is told of each node that enters or leaves.
    If the tree ``composes``, nodes know the others of their document.
    """

    def __init__(self, policy: ReplacementPolicy, *, composes: bool) -> None:
        self._composes = composes
        self._policy = policy
        self.roots: dict[str, Node] = {}
        self.nodes: dict[bytes, Node] = {}
        self.detached: dict[bytes, Node] = {}
        self.by_content: dict[str, Node | dict[Node, None]] = {}
        # How many deletions block a content, in one namespace or, if that is None, in all.
        self._blocked: Counter[tuple[str | None, str]] = Counter()

    def find(self, key: bytes) -> Node | None:
        """A node of the tree, or a deleted one that a plan still uses."""
        return self.nodes.get(key) or self.detached.get(key)

    def nodes_of(self, content: str) -> tuple[Node, ...] | dict[Node, None]:
        """The nodes of a document, the latest one last."""
        nodes = self.by_content.get(content)
        if isinstance(nodes, dict):
            return nodes
        return (nodes,) if nodes is not None else ()

    def nodes_in(self, content: str, namespace: str | None) -> list[Node]:
        """The nodes of a document in a tenant's namespaces, those of adapters included, or in all."""
        nodes = self.nodes_of(content)
        return [node for node in nodes if namespace is None or without_adapter(node.root.content) == namespace]

    def path(self, namespace: str, contents: Sequence[str]) -> list[Node]:
        """The nodes of a path. Raises UnknownNode unless the tree has them all."""
        nodes: list[Node] = []
        node = self.roots.get(namespace)
        for content in contents:
            node = node.child_of(content) if node is not None else None
            if node is None:
                raise UnknownNode(f"document {content!r} is not in the knowledge tree behind {len(nodes)} others")
            nodes.append(node)
        if not nodes:
            raise UnknownNode("a path has at least one document")
        return nodes

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
        node.parent.add_child(node)
        self.nodes[node.key] = node
        others = self.by_content.get(node.content)
        if others is None:
            self.by_content[node.content] = node
        else:
            self._add_to(others, node)
        self._policy.entered(node)

    def detach(self, node: Node) -> None:
        """Remove a node from the tree."""
        node.detached = True
        assert node.parent is not None
        node.parent.remove_child(node)
        del self.nodes[node.key]
        nodes = self.by_content[node.content]
        if isinstance(nodes, dict):
            del nodes[node]
        if nodes is node or not nodes:
            del self.by_content[node.content]
        self._policy.left(node)

    def _add_to(self, others: Node | dict[Node, None], node: Node) -> None:
        """Add a node to the others of its document."""
        if isinstance(others, dict):
            nodes = others
        else:
            nodes = self.by_content[node.content] = {others: None}
            if self._composes:
                others.same_document = nodes
        nodes[node] = None
        if self._composes:
            node.same_document = nodes

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
            parent.child_of(content) is not None
            or key in self.detached
            or (self._blocked and self._blocks(content, parent.root.content))
        )

    def block(self, content: str, namespace: str | None) -> None:
        """Keep nothing of a document, in a tenant's namespaces or in all, until ``unblock`` is called as often."""
        self._blocked[namespace, content] += 1

    def unblock(self, content: str, namespace: str | None) -> None:
        """Take back one ``block``."""
        self._blocked[namespace, content] -= 1
        if not self._blocked[namespace, content]:
            del self._blocked[namespace, content]

    def _blocks(self, content: str, namespace: str) -> bool:
        return (None, content) in self._blocked or (without_adapter(namespace), content) in self._blocked
