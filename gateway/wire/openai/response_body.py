"""The body of a request to OpenAI's responses endpoint."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from gateway.wire.entries import at_most
from gateway.wire.openai.body_fields import ConversationFields
from gateway.wire.openai.messages import ContentPart, chat_message
from gateway.wire.openai.parameters import OpenAIBody
from gateway.wire.openai.response_format import JsonObject, NamedSchema, PlainText
from gateway.wire.openai.sampling_fields import SamplingFields, TopLogprobs
from gateway.wire.schemas import AnswerBody, MaxTokens, Text
from protocol.errors import InvalidRequest, UnsupportedParameter
from protocol.generation import Sampling
from protocol.prompts import ChatMessage

_LOGPROBS = "message.output_text.logprobs"
_TEXT_PARTS = ("input_text", "output_text", "text")


class FlatSchema(NamedSchema):
    """JSON that follows a schema, as this endpoint names it."""

    type: Literal["json_schema"]


class TextConfig(OpenAIBody):
    """The format of the answer."""

    format: Annotated[PlainText | JsonObject | FlatSchema, Field(discriminator="type")] | None = None

    def echo(self) -> dict[str, Any]:
        """The format as the reply repeats it."""
        return {"type": "text"} if self.format is None else self.format.model_dump(by_alias=True, exclude_none=True)


class InputItem(BaseModel):
    """An item of the input. Only messages are served."""

    type: Text | None = Field(default=None, examples=["message"])
    role: Literal["system", "developer", "user", "assistant"] | None = None
    content: Text | Annotated[list[ContentPart], Field(fail_fast=True)] | None = None

    def to_protocol(self, param: str) -> ChatMessage:
        """Convert to the prompt layout's message. Raises UnsupportedParameter, or InvalidRequest without a role."""
        if self.type not in (None, "message"):
            raise UnsupportedParameter(f"RAGTree serves messages only, not {self.type!r}.", f"{param}.type")
        if self.role is None:
            raise InvalidRequest("A message needs a role.", f"{param}.role")
        return chat_message(self.role, self.content, param, _TEXT_PARTS)


class ResponseBody(OpenAIBody, AnswerBody, ConversationFields, SamplingFields):
    """A request for one response, without tools and without state on the server."""

    model: str = Field(min_length=1)
    input: Text | Annotated[list[InputItem], Field(fail_fast=True, min_length=1)]
    instructions: Text | None = None
    stream: bool | None = None
    max_output_tokens: MaxTokens | None = None
    text: TextConfig = TextConfig()
    include: Annotated[list[Text], Field(fail_fast=True)] | None = Field(default=None, examples=[[_LOGPROBS]])
    top_logprobs: TopLogprobs | None = None
    metadata: Annotated[dict[Text, Text], Field(max_length=16), at_most(16)] | None = None

    def refuse_unserved(self) -> None:
        """Raise UnsupportedParameter for a parameter that is not served, unless its value asks for nothing."""
        super().refuse_unserved()
        try:
            self.text.refuse_unserved()
        except UnsupportedParameter as error:
            raise UnsupportedParameter(error.message, f"text.{error.param}") from None
        for included in self.include or ():
            if included != _LOGPROBS:
                raise UnsupportedParameter(f"RAGTree does not serve {included!r} here; leave it out.", "include")

    def messages(self) -> list[ChatMessage]:
        """The conversation, the instructions first. Raises UnsupportedParameter or InvalidRequest."""
        instructions = [ChatMessage("system", self.instructions)] if self.instructions else []
        if isinstance(self.input, str):
            return [*instructions, ChatMessage("user", self.input)]
        return [*instructions, *(item.to_protocol(f"input.{number}") for number, item in enumerate(self.input))]

    def sampling(self, default_max_tokens: int) -> Sampling:
        """The sampling of the answer. Raises InvalidRequest for ``top_logprobs`` that are not to be included."""
        logprobs = _LOGPROBS in (self.include or ())
        if self.top_logprobs and not logprobs:
            raise InvalidRequest(f"top_logprobs needs {_LOGPROBS!r} in include.", "top_logprobs")
        return self.to_sampling(
            self.max_output_tokens or default_max_tokens,
            None if self.text.format is None else self.text.format.to_json_schema(),
            (self.top_logprobs or 0) if logprobs else None,
        )
