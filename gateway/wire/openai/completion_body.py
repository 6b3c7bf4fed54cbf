"""The body of a completion request."""

from typing import Annotated

from pydantic import Field

from gateway.wire.openai.body_fields import ChoiceFields, StreamFields
from gateway.wire.openai.parameters import OpenAIBody
from gateway.wire.openai.sampling_fields import SamplingFields, TopLogprobs
from gateway.wire.schemas import AnswerBody, MaxTokens, Question
from protocol.errors import UnsupportedParameter
from protocol.generation import Sampling

_Questions = Annotated[list[Question], Field(fail_fast=True)]
_TokenIds = Annotated[list[int], Field(fail_fast=True)]
_TokenLists = Annotated[list[_TokenIds], Field(fail_fast=True)]


class CompletionBody(ChoiceFields, StreamFields, OpenAIBody, AnswerBody, SamplingFields):
    """OpenAI's completion request. The prompt is the question: the answer does not continue its text."""

    model: str = Field(min_length=1)
    prompt: Question | Annotated[_Questions | _TokenIds | _TokenLists, Field(min_length=1, max_length=2048)]
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
