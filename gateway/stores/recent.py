"""What the gateway remembers of recent queries: the names of documents, and answers that wait to be compared."""

import asyncio
import random
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import msgspec

from gateway.wire.reuse import Approximation
from protocol.cache import TreeNode, TreeView
from protocol.generation import Sampling
from protocol.prompts import Prompt
from protocol.retrieval import Chunk, Revisions

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


_KEPT = 16


class ApproximateAnswer(NamedTuple):
    """A greedy answer to a prompt whose KV was an ``approximation`` of that of a full prefill.

    ``prompt`` has its facts in full. Its documents were ``found_at`` these revisions.
    """

    query_id: str
    namespace: str
    prompt: Prompt
    approximation: Approximation
    text: str
    found_at: Revisions


class ApproximateAnswers:
    """A random ``share`` of the approximate answers that can be compared, until they are; the latest few of them.

    ``draw`` returns a number from 0 to 1.
    """

    def __init__(self, share: float, draw: Callable[[], float] = random.random) -> None:
        self._share = share
        self._draw = draw
        self._answers: deque[ApproximateAnswer] = deque(maxlen=_KEPT)
        self._any = asyncio.Event()

    def note(self, answer: ApproximateAnswer, sampling: Sampling) -> None:
        """Keep an answer if it is drawn. Only greedy ones are comparable."""
        if sampling.greedy and self._draw() < self._share:
            self._answers.append(answer)
            self._any.set()

    async def next(self) -> ApproximateAnswer:
        """Wait for an answer, and take the oldest one."""
        await self._any.wait()
        answer = self._answers.popleft()
        if not self._answers:
            self._any.clear()
        return answer
