"""The prompt as everyone but the tokenizer sees it: segments of token ids, in order."""

from enum import StrEnum
from itertools import takewhile

import msgspec


class SegmentKind(StrEnum):
    """What a segment is to the prompt."""

    SYSTEM = "system"
    DOCUMENT = "document"
    QUESTION = "question"


class Segment(msgspec.Struct, frozen=True):
    """A run of token ids tokenised on its own, so its ids are the same wherever it stands.

    ``key`` is the content hash of what was tokenised: for a document the chunk's own, which keys its KV.
    """

    kind: SegmentKind
    key: str
    token_ids: tuple[int, ...]


class Prompt(msgspec.Struct, frozen=True):
    """The segments of one prompt: system, documents, question. The engine gets their ids concatenated.

    ``dropped_documents`` counts those left out from the tail because the model's context had no room for them.
    """

    segments: tuple[Segment, ...]
    dropped_documents: int = 0

    @property
    def token_count(self) -> int:
        """Tokens of the whole prompt."""
        return sum(len(segment.token_ids) for segment in self.segments)

    @property
    def token_ids(self) -> list[int]:
        """The ids of all segments, concatenated."""
        return [token for segment in self.segments for token in segment.token_ids]

    @property
    def prefix(self) -> tuple[Segment, ...]:
        """The segments in front of the first question that have any tokens: the path of nodes whose KV can be kept."""
        in_front = takewhile(lambda segment: segment.kind is not SegmentKind.QUESTION, self.segments)
        return tuple(segment for segment in in_front if segment.token_ids)

    @property
    def documents(self) -> tuple[Segment, ...]:
        """The segments that are documents, in prompt order."""
        return tuple(segment for segment in self.segments if segment.kind is SegmentKind.DOCUMENT)


class ChatMessage(msgspec.Struct, frozen=True):
    """One turn of a conversation, in the roles that chat templates know."""

    role: str
    content: str
