"""The prompt after tokenization: segments of token ids, in order."""

from collections.abc import Iterable
from enum import StrEnum
from itertools import takewhile

import msgspec

from protocol.dependency import Branch, DependencyTrees, DepPrompt


class SegmentKind(StrEnum):
    """Role of a segment in the prompt."""

    SYSTEM = "system"
    DOCUMENT = "document"
    QUESTION = "question"


class Segment(msgspec.Struct, frozen=True):
    """A run of token ids, tokenized on its own, so that its ids do not depend on its neighbours.

    ``key`` is the hash of the tokenized content. For a document it is the chunk's hash, which keys its KV. If there are
    ``branches``, these are the tokens of dependency trees, in pre-order.
    """

    kind: SegmentKind
    key: str
    token_ids: tuple[int, ...]
    branches: tuple[Branch, ...] = ()


class Prompt(msgspec.Struct, frozen=True):
    """The segments of one prompt: system, documents, question. The engine gets their concatenated ids.

    Facts of a graph are a separate segment before the question, of its kind. ``facts`` has the same as
    dependency trees, if they are not ``in_trees`` already.

    ``dropped_documents`` counts the documents left out at the end because the model's context has no room for them.
    ``paths`` are the places, among those of the graph, of the paths that are told after the documents.
    """

    segments: tuple[Segment, ...]
    dropped_documents: int = 0
    paths: tuple[int, ...] = ()
    facts: DepPrompt | None = None

    @property
    def in_trees(self) -> "Prompt":
        """The prompt with its facts as dependency trees; the same if it has none."""
        if self.facts is None:
            return self
        *front, told, question = self.segments
        trees = Segment(told.kind, told.key, self.facts.token_ids, self.facts.branches)
        behind = Segment(told.kind, told.key, self.facts.behind)
        return msgspec.structs.replace(self, segments=(*front, trees, behind, question), facts=None)

    @property
    def trees(self) -> DependencyTrees | None:
        """Where the prompt has dependency trees, whose branches attend to the system prompt; None if it has none."""
        start = front = 0
        for segment in self.segments:
            if segment.branches:
                return DependencyTrees(start, front, segment.branches)
            start += len(segment.token_ids)
            if segment.kind is SegmentKind.SYSTEM:
                front = start
        return None

    @property
    def stated_by(self) -> set[str]:
        """The content hashes of the chunks that state the branches of its dependency trees."""
        return {content for segment in self.segments for branch in segment.branches for content in branch.stated_by}

    @property
    def token_count(self) -> int:
        """Number of tokens in the whole prompt."""
        return sum(len(segment.token_ids) for segment in self.segments)

    @property
    def token_ids(self) -> list[int]:
        """The ids of all segments, concatenated."""
        return [token for segment in self.segments for token in segment.token_ids]

    @property
    def prefix(self) -> tuple[Segment, ...]:
        """The non-empty segments before the first question: the path of nodes whose KV can be cached."""
        in_front = takewhile(lambda segment: segment.kind is not SegmentKind.QUESTION, self.segments)
        return tuple(segment for segment in in_front if segment.token_ids)

    def of_prefix(self, places: Iterable[int]) -> "Prompt":
        """A prompt of the segments at these ``places`` of ``prefix``, without a question."""
        prefix = self.prefix
        return Prompt(tuple(prefix[place] for place in places))

    @property
    def documents(self) -> tuple[Segment, ...]:
        """The document segments, in prompt order."""
        return tuple(segment for segment in self.segments if segment.kind is SegmentKind.DOCUMENT)


class ChatMessage(msgspec.Struct, frozen=True):
    """One message of a conversation, with a role that chat templates know."""

    role: str
    content: str
