"""The events of a streamed response, in OpenAI's format and order.

    response.created                        first
    response.in_progress
    response.output_item.added              the prompt is prefilled
    response.content_part.added
    response.output_text.annotation.added   one per document in the prompt
    response.output_text.delta              new text
    response.output_text.done               the whole text
    response.content_part.done
    response.output_item.done
    response.completed                      terminal: the response
    response.incomplete                     terminal: the response, cut at its longest length
    response.failed                         terminal: the error

Exactly one terminal event ends a stream.
"""

from typing import TypedDict

import msgspec

from gateway.wire import events
from gateway.wire.openai.responses import (
    FileCitation,
    OutputMessage,
    OutputText,
    ResponseBody,
    ResponseObject,
    ended,
    failed,
    file_citation,
    message_id,
    output_text,
    response_in_progress,
)
from gateway.wire.reply import Reply, ScoredToken
from protocol.errors import RagtreeError
from protocol.generation import Sampling


class ResponseEvent(msgspec.Struct, frozen=True, kw_only=True, tag_field="type"):
    """Base of all events. ``sequence_number`` counts a response's events from 0."""

    sequence_number: int


class ResponseCreated(ResponseEvent, frozen=True, kw_only=True, tag="response.created"):
    """The request was accepted."""

    response: ResponseObject


class ResponseInProgress(ResponseEvent, frozen=True, kw_only=True, tag="response.in_progress"):
    """The response is being made."""

    response: ResponseObject


class OutputItemAdded(ResponseEvent, frozen=True, kw_only=True, tag="response.output_item.added"):
    """The message has begun."""

    output_index: int = 0
    item: OutputMessage


class ContentPartAdded(ResponseEvent, frozen=True, kw_only=True, tag="response.content_part.added"):
    """The message's text has begun."""

    item_id: str
    output_index: int = 0
    content_index: int = 0
    part: OutputText


class TextAnnotationAdded(ResponseEvent, frozen=True, kw_only=True, tag="response.output_text.annotation.added"):
    """A document in the prompt."""

    item_id: str
    output_index: int = 0
    content_index: int = 0
    annotation_index: int
    annotation: FileCitation


class TextDelta(ResponseEvent, frozen=True, kw_only=True, tag="response.output_text.delta"):
    """New text. ``logprobs`` are empty unless they were asked for."""

    item_id: str
    output_index: int = 0
    content_index: int = 0
    delta: str
    logprobs: tuple[ScoredToken, ...]


class TextDone(ResponseEvent, frozen=True, kw_only=True, tag="response.output_text.done"):
    """The whole text."""

    item_id: str
    output_index: int = 0
    content_index: int = 0
    text: str
    logprobs: tuple[ScoredToken, ...]


class ContentPartDone(ResponseEvent, frozen=True, kw_only=True, tag="response.content_part.done"):
    """The whole text with its sources."""

    item_id: str
    output_index: int = 0
    content_index: int = 0
    part: OutputText


class OutputItemDone(ResponseEvent, frozen=True, kw_only=True, tag="response.output_item.done"):
    """The whole message."""

    output_index: int = 0
    item: OutputMessage


class ResponseCompleted(ResponseEvent, frozen=True, kw_only=True, tag="response.completed"):
    """The end of a response."""

    response: ResponseObject


class ResponseIncomplete(ResponseEvent, frozen=True, kw_only=True, tag="response.incomplete"):
    """The end of a response that reached its longest length."""

    response: ResponseObject


class ResponseFailed(ResponseEvent, frozen=True, kw_only=True, tag="response.failed"):
    """The end of a response that failed."""

    response: ResponseObject


RESPONSE_EVENTS = tuple(ResponseEvent.__subclasses__())


class _Stamp(TypedDict):
    sequence_number: int


class ResponseEvents:
    """Converts a query's events into those of its response."""

    def __init__(self, body: ResponseBody, sampling: Sampling, query_id: str, model: str, created_at: int) -> None:
        self._response = response_in_progress(body, sampling, query_id, model, created_at)
        self._message = OutputMessage(id=message_id(query_id), status="in_progress")
        self._sequence = 0
        self._annotations = 0

    def of(self, event: events.Event) -> list[ResponseEvent]:
        """The events of the next event."""
        message_id = self._message.id
        match event:
            case events.QueryCreated():
                return [
                    ResponseCreated(**self._stamp(), response=self._response),
                    ResponseInProgress(**self._stamp(), response=self._response),
                ]
            case events.CacheResolved():
                return [
                    OutputItemAdded(**self._stamp(), item=self._message),
                    ContentPartAdded(**self._stamp(), item_id=message_id, part=OutputText()),
                ]
            case events.AnnotationAdded():
                number, self._annotations = self._annotations, self._annotations + 1
                annotation = file_citation(event.annotation)
                return [
                    TextAnnotationAdded(
                        **self._stamp(), item_id=message_id, annotation_index=number, annotation=annotation
                    )
                ]
            case events.OutputTextDelta():
                logprobs = () if event.logprobs is msgspec.UNSET else event.logprobs
                return [TextDelta(**self._stamp(), item_id=message_id, delta=event.delta, logprobs=logprobs)]
            case events.QueryCompleted():
                return self._closing(event.response)
        return []

    def failed(self, error: RagtreeError) -> ResponseFailed:
        """The terminal event of a response that failed."""
        return ResponseFailed(**self._stamp(), response=failed(self._response, error))

    def _closing(self, reply: Reply) -> list[ResponseEvent]:
        response, part = ended(self._response, reply), output_text(reply)
        terminal = ResponseIncomplete if response.status == "incomplete" else ResponseCompleted
        message_id = self._message.id
        return [
            TextDone(**self._stamp(), item_id=message_id, text=part.text, logprobs=part.logprobs),
            ContentPartDone(**self._stamp(), item_id=message_id, part=part),
            OutputItemDone(**self._stamp(), item=response.output[0]),
            terminal(**self._stamp(), response=response),
        ]

    def _stamp(self) -> _Stamp:
        number, self._sequence = self._sequence, self._sequence + 1
        return {"sequence_number": number}
