"""OpenAI's completions endpoint: the body of a request, and the answer, whose format its streams have, too.

In addition to OpenAI's fields, a completion and the first object of a stream have ``citations`` and ``partial``, as in
a chat.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Annotated, Literal

import msgspec
from pydantic import Field

from gateway.wire.openai.choice_stream import ChoiceStream, Tokens, openai_id, usage_of
from gateway.wire.openai.request_fields import ChoiceFields, ModelBody, TokenIds, TokenLists, TopLogprobs
from gateway.wire.reply import Citation, Reply, Usage
from gateway.wire.schemas import MaxTokens, Question
from protocol.errors import UnsupportedParameter
from protocol.generation import FinishReason, Sampling

_Questions = Annotated[list[Question], Field(fail_fast=True)]


class CompletionBody(ChoiceFields, ModelBody):
    """OpenAI's completion request. The prompt is the question: the answer does not continue its text."""

    question_field = "prompt"
    prompt: Question | Annotated[_Questions | TokenIds | TokenLists, Field(min_length=1, max_length=2048)]
    max_tokens: MaxTokens | None = None
    logprobs: TopLogprobs | None = None

    def question(self) -> str:
        """The prompt's text. Raises UnsupportedParameter for several prompts, and for token ids."""
        given = [self.prompt] if isinstance(self.prompt, str) else self.prompt
        if len(given) > 1 or not isinstance(given[0], str):
            raise UnsupportedParameter("RAGTree answers one prompt, as a string.", "prompt")
        return given[0]

    def sampling(self, default_max_tokens: int) -> Sampling:
        """The sampling of the answer."""
        return self.to_sampling(self.max_tokens or default_max_tokens, None, self.logprobs)


class CompletionLogprobs(msgspec.Struct, frozen=True):
    """The log probabilities of a choice's tokens. ``text_offset`` is where each begins in the answer, in characters."""

    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]


class CompletionChoice(msgspec.Struct, frozen=True, kw_only=True):
    """One choice of a completion. In a stream, only a choice's last part has the ``finish_reason``."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: FinishReason | None


class Completion(msgspec.Struct, frozen=True, kw_only=True):
    """An answer, or a part of one in a stream."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: tuple[CompletionChoice, ...]
    usage: Usage | msgspec.UnsetType | None = msgspec.UNSET
    citations: tuple[Citation, ...] | msgspec.UnsetType = msgspec.UNSET
    partial: bool | msgspec.UnsetType = msgspec.UNSET


def completion(replies: Sequence[Reply]) -> Completion:
    """Convert the replies of choices into OpenAI's format."""
    first = replies[0]
    return Completion(
        id=openai_id("cmpl-", first.query_id),
        created=first.created_at,
        model=first.model,
        choices=tuple(
            CompletionChoice(
                index=index,
                text=reply.output_text,
                logprobs=_logprobs(reply.logprobs, 0),
                finish_reason=reply.finish_reason,
            )
            for index, reply in enumerate(replies)
        ),
        usage=usage_of(replies),
        citations=first.citations,
        partial=first.partial,
    )


class CompletionChunks(ChoiceStream[Completion]):
    """The objects of a completion's stream. The first one has the citations."""

    def __init__(self, body: ChoiceFields) -> None:
        super().__init__(body)
        self._opened = False
        # Of each choice's next token with a log probability.
        self._offsets = Counter[int]()

    def _text(self, index: int, text: str, tokens: Tokens) -> list[Completion]:
        return [self._part(index, text, tokens)]

    def _last(self, index: int, reply: Reply, tokens: Tokens) -> list[Completion]:
        return [self._part(index, "", tokens, reply.finish_reason)]

    def _part(self, index: int, text: str, tokens: Tokens, finish_reason: FinishReason | None = None) -> Completion:
        opened, self._opened = self._opened, True
        logprobs = _logprobs(tokens, self._offsets[index])
        self._offsets[index] += 0 if tokens is msgspec.UNSET else sum(len(token.token) for token in tokens)
        return Completion(
            id=openai_id("cmpl-", self._query.query_id),
            created=self._query.created_at,
            model=self._query.model,
            choices=(CompletionChoice(index=index, text=text, logprobs=logprobs, finish_reason=finish_reason),),
            usage=self._no_usage,
            citations=msgspec.UNSET if opened else tuple(self._citations),
            partial=msgspec.UNSET if opened else self._partial,
        )


def _logprobs(tokens: Tokens, offset: int) -> CompletionLogprobs | None:
    if tokens is msgspec.UNSET:
        return None
    offsets = []
    for token in tokens:
        offsets.append(offset)
        offset += len(token.token)
    return CompletionLogprobs(
        [token.token for token in tokens],
        [token.logprob for token in tokens],
        [{likely.token: likely.logprob for likely in token.top_logprobs} for token in tokens],
        offsets,
    )
