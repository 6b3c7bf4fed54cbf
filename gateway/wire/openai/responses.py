"""OpenAI's responses endpoint: the body of a request, and the answer."""

from typing import Annotated, Any, Literal

import msgspec
from pydantic import BaseModel, Field

from gateway.wire.openai.choice_stream import openai_id
from gateway.wire.openai.request_fields import (
    ContentPart,
    ConversationFields,
    JsonObject,
    ModelBody,
    NamedSchema,
    OpenAIBody,
    PlainText,
    TopLogprobs,
    chat_message,
)
from gateway.wire.reply import Citation, Reply, Rewriting, ScoredToken
from gateway.wire.schemas import MaxTokens, Text, at_most
from protocol.errors import InvalidRequest, RagtreeError, UnsupportedParameter
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


class ResponseBody(ModelBody, ConversationFields):
    """A request for one response, without tools and without state on the server."""

    question_field, schema_field = "input", "text.format"
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


Status = Literal["in_progress", "completed", "incomplete", "failed"]


class FileCitation(msgspec.Struct, frozen=True, tag_field="type", tag="file_citation"):
    """A document in the prompt. ``index`` is its rank among the results of the search."""

    file_id: str
    filename: str
    index: int
    chunk_id: str


class OutputText(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="output_text"):
    """The text of an answer, with its sources and, on request, its tokens."""

    text: str = ""
    annotations: tuple[FileCitation, ...] = ()
    logprobs: tuple[ScoredToken, ...] = ()


class OutputMessage(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="message"):
    """The answer as a message."""

    id: str
    role: Literal["assistant"] = "assistant"
    status: Status
    content: tuple[OutputText, ...] = ()


class InputTokensDetails(msgspec.Struct, frozen=True):
    """The tokens of the prompt whose KV was cached."""

    cached_tokens: int
    cache_write_tokens: int = 0


class OutputTokensDetails(msgspec.Struct, frozen=True):
    """The tokens of the answer that are not part of its text."""

    reasoning_tokens: int = 0


class ResponseUsage(msgspec.Struct, frozen=True):
    """The tokens of the prompt and of the answer."""

    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class ResponseError(msgspec.Struct, frozen=True):
    """Why a response failed."""

    code: str
    message: str


class IncompleteDetails(msgspec.Struct, frozen=True):
    """Why a response is incomplete."""

    reason: Literal["max_output_tokens"]


class ResponseObject(msgspec.Struct, frozen=True, kw_only=True):
    """A response. ``output`` is empty until it has ended.

    In addition to OpenAI's fields, ``partial`` and ``rewriting`` are as in a chat. ``text`` repeats the format of the
    request.
    """

    id: str
    object: Literal["response"] = "response"
    created_at: int
    status: Status = "in_progress"
    error: ResponseError | None = None
    incomplete_details: IncompleteDetails | None = None
    instructions: str | None
    max_output_tokens: int
    metadata: dict[str, str]
    model: str
    output: tuple[OutputMessage, ...] = ()
    parallel_tool_calls: bool = False
    previous_response_id: None = None
    store: bool = False
    temperature: float
    text: dict[str, Any]
    tool_choice: Literal["none"] = "none"
    tools: tuple[()] = ()
    top_p: float
    truncation: Literal["disabled"] = "disabled"
    usage: ResponseUsage | None = None
    partial: bool = False
    rewriting: Rewriting | None = None


def response_in_progress(
    body: ResponseBody, sampling: Sampling, query_id: str, model: str, created_at: int
) -> ResponseObject:
    """The response to a query that was accepted at this time."""
    return ResponseObject(
        id=openai_id("resp_", query_id),
        created_at=created_at,
        instructions=body.instructions,
        max_output_tokens=sampling.max_tokens,
        metadata=body.metadata or {},
        model=model,
        temperature=sampling.temperature,
        text={"format": body.text.echo()},
        top_p=sampling.top_p,
    )


def ended(response: ResponseObject, reply: Reply) -> ResponseObject:
    """The response with its answer. One that reached its longest length is incomplete."""
    cut = reply.finish_reason == "length"
    status: Status = "incomplete" if cut else "completed"
    return msgspec.structs.replace(
        response,
        status=status,
        incomplete_details=IncompleteDetails("max_output_tokens") if cut else None,
        output=(OutputMessage(id=openai_id("msg_", reply.query_id), status=status, content=(output_text(reply),)),),
        usage=ResponseUsage(
            reply.usage.prompt_tokens,
            InputTokensDetails(reply.usage.prompt_tokens_details.cached_tokens),
            reply.usage.completion_tokens,
            OutputTokensDetails(),
            reply.usage.total_tokens,
        ),
        partial=reply.partial,
        rewriting=reply.rewriting,
    )


def failed(response: ResponseObject, error: RagtreeError) -> ResponseObject:
    """The response that ended with an error."""
    return msgspec.structs.replace(response, status="failed", error=ResponseError(error.code, error.message))


def output_text(reply: Reply) -> OutputText:
    """The text of a reply."""
    return OutputText(
        text=reply.output_text,
        annotations=tuple(map(file_citation, reply.citations)),
        logprobs=() if reply.logprobs is msgspec.UNSET else reply.logprobs,
    )


def file_citation(cited: Citation) -> FileCitation:
    """A citation in OpenAI's format."""
    return FileCitation(cited.document_id, cited.filename, cited.index, cited.chunk_id)
