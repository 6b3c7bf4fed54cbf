"""Names of the documents in the knowledge tree, known from recent queries."""

from collections import OrderedDict
from collections.abc import Iterator, Sequence

import msgspec

from protocol.cache import TreeNode, TreeView
from protocol.retrieval import Chunk

_REMEMBERED = 20_000


class DocumentName(msgspec.Struct, frozen=True):
    """A chunk's document and file name, and the chunk's index in the document, from 0."""

    document_id: str
    filename: str
    index: int


class RecentDocuments:
    """Names of the last 20,000 chunks that queries found, by namespace and content.

    The tree stores contents without names. Equal texts share one node, which gets the name of the chunk found last.
    """

    def __init__(self, remembered: int = _REMEMBERED) -> None:
        self._remembered = remembered
        self._names: OrderedDict[tuple[str, str], DocumentName] = OrderedDict()

    def found(self, namespace: str, chunks: Sequence[Chunk]) -> None:
        """Record a search's final documents."""
        for chunk in chunks:
            key = namespace, chunk.content_hash
            self._names[key] = DocumentName(chunk.document_id, chunk.filename, chunk.index)
            self._names.move_to_end(key)
        while len(self._names) > self._remembered:
            self._names.popitem(last=False)

    def names_in(self, view: TreeView) -> dict[str, dict[str, DocumentName]]:
        """The known names of the view's contents, by namespace."""
        named: dict[str, dict[str, DocumentName]] = {}
        for namespace, tops in view.namespaces.items():
            contents = {node.content for top in tops for node in _subtree(top)}
            named[namespace] = {
                content: self._names[namespace, content]
                for content in contents
                if (namespace, content) in self._names
            }  # fmt: skip
        return named


def _subtree(node: TreeNode) -> Iterator[TreeNode]:
    waiting = [node]
    while waiting:
        yield (last := waiting.pop())
        waiting.extend(last.children)
