"""Answers in the format of OpenAI's responses endpoint."""

from typing import Any, Literal

import msgspec

from gateway.wire.logprobs import ScoredToken
from gateway.wire.openai.response_body import ResponseBody
from gateway.wire.reply import Citation, Reply
from gateway.wire.rewriting import Rewriting
from protocol.errors import RagtreeError
from protocol.generation import Sampling

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
        id=f"resp_{_number(query_id)}",
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
        output=(OutputMessage(id=message_id(reply.query_id), status=status, content=(output_text(reply),)),),
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


def message_id(query_id: str) -> str:
    """The id of a response's only message."""
    return f"msg_{_number(query_id)}"


def _number(query_id: str) -> str:
    return query_id.removeprefix("query_")
