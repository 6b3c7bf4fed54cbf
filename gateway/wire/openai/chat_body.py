"""The body of a chat request."""

from typing import Annotated

from pydantic import Field

from gateway.wire.openai.body_fields import ChoiceFields, ConversationFields, StreamFields
from gateway.wire.openai.messages import ASKS, ChatTurn
from gateway.wire.openai.parameters import OpenAIBody
from gateway.wire.openai.response_format import ResponseFormat
from gateway.wire.openai.sampling_fields import SamplingFields, TopLogprobs
from gateway.wire.schemas import AnswerBody, MaxTokens
from protocol.errors import InvalidRequest
from protocol.generation import Sampling
from protocol.prompts import ChatMessage


class ChatBody(ChoiceFields, StreamFields, OpenAIBody, AnswerBody, ConversationFields, SamplingFields):
    """OpenAI's chat request, plus our fields of an answer and of a conversation, and vLLM's sampling parameters."""

    model: str = Field(min_length=1)
    messages: Annotated[list[ChatTurn], Field(fail_fast=True)] = Field(min_length=1, json_schema_extra=ASKS)
    max_tokens: MaxTokens | None = None
    max_completion_tokens: MaxTokens | None = None
    response_format: ResponseFormat | None = None
    logprobs: bool | None = None
    top_logprobs: TopLogprobs | None = None

    def conversation(self) -> list[ChatMessage]:
        """The messages of the prompt layout. Raises UnsupportedParameter or InvalidRequest."""
        return [turn.to_protocol(f"messages.{number}") for number, turn in enumerate(self.messages)]

    def sampling(self, default_max_tokens: int) -> Sampling:
        """The sampling of the answer. Raises InvalidRequest for ``top_logprobs`` without ``logprobs``."""
        if self.top_logprobs and not self.logprobs:
            raise InvalidRequest("top_logprobs needs logprobs: true.", "top_logprobs")
        return self.to_sampling(
            self.max_completion_tokens or self.max_tokens or default_max_tokens,
            None if self.response_format is None else self.response_format.to_json_schema(),
            (self.top_logprobs or 0) if self.logprobs else None,
        )
