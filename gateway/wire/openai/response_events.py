"""The events of a streamed response, in OpenAI's format.

``RESPONSE_EVENTS`` has them in the order of a stream. Exactly one of the last three, which are terminal, ends it.
"""

from typing import TypedDict

import msgspec

from gateway.wire import events
from gateway.wire.openai import responses
from gateway.wire.openai.choice_stream import openai_id
from gateway.wire.reply import Reply, ScoredToken
from protocol.errors import RagtreeError


class ResponseEvent(msgspec.Struct, frozen=True, kw_only=True, tag_field="type"):
    """Base of all events. ``sequence_number`` counts a response's events from 0."""

    sequence_number: int


class WholeResponse(ResponseEvent, frozen=True, kw_only=True):
    """An event with the response as it is by then."""

    response: responses.ResponseObject


class TextEvent(ResponseEvent, frozen=True, kw_only=True):
    """An event of the message's only text."""

    item_id: str
    output_index: int = 0
    content_index: int = 0


class ResponseCreated(WholeResponse, frozen=True, kw_only=True, tag="response.created"):
    """The request was accepted."""


class ResponseInProgress(WholeResponse, frozen=True, kw_only=True, tag="response.in_progress"):
    """The response is being made."""


class OutputItemAdded(ResponseEvent, frozen=True, kw_only=True, tag="response.output_item.added"):
    """The message has begun: the prompt is prefilled."""

    output_index: int = 0
    item: responses.OutputMessage


class ContentPartAdded(TextEvent, frozen=True, kw_only=True, tag="response.content_part.added"):
    """The message's text has begun."""

    part: responses.OutputText


class TextAnnotationAdded(TextEvent, frozen=True, kw_only=True, tag="response.output_text.annotation.added"):
    """A document in the prompt, one event for each."""

    annotation_index: int
    annotation: responses.FileCitation


class TextDelta(TextEvent, frozen=True, kw_only=True, tag="response.output_text.delta"):
    """New text. ``logprobs`` are empty unless they were asked for."""

    delta: str
    logprobs: tuple[ScoredToken, ...]


class TextDone(TextEvent, frozen=True, kw_only=True, tag="response.output_text.done"):
    """The whole text."""

    text: str
    logprobs: tuple[ScoredToken, ...]


class ContentPartDone(TextEvent, frozen=True, kw_only=True, tag="response.content_part.done"):
    """The whole text with its sources."""

    part: responses.OutputText


class OutputItemDone(ResponseEvent, frozen=True, kw_only=True, tag="response.output_item.done"):
    """The whole message."""

    output_index: int = 0
    item: responses.OutputMessage


class ResponseCompleted(WholeResponse, frozen=True, kw_only=True, tag="response.completed"):
    """The end of a response."""


class ResponseIncomplete(WholeResponse, frozen=True, kw_only=True, tag="response.incomplete"):
    """The end of a response that reached its longest length."""


class ResponseFailed(WholeResponse, frozen=True, kw_only=True, tag="response.failed"):
    """The end of a response that failed."""


RESPONSE_EVENTS: tuple[type[ResponseEvent], ...] = (
    ResponseCreated, ResponseInProgress, OutputItemAdded, ContentPartAdded, TextAnnotationAdded, TextDelta, TextDone,
    ContentPartDone, OutputItemDone, ResponseCompleted, ResponseIncomplete, ResponseFailed,
)  # fmt: skip


class _Stamp(TypedDict):
    sequence_number: int


class ResponseEvents:
    """Converts a query's events into those of its ``response``, which is in progress."""

    def __init__(self, response: responses.ResponseObject, query_id: str) -> None:
        self._response = response
        self._message = responses.OutputMessage(id=openai_id("msg_", query_id), status="in_progress")
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
                    ContentPartAdded(**self._stamp(), item_id=message_id, part=responses.OutputText()),
                ]
            case events.AnnotationAdded():
                number, self._annotations = self._annotations, self._annotations + 1
                annotation = responses.file_citation(event.annotation)
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
        return ResponseFailed(**self._stamp(), response=responses.failed(self._response, error))

    def _closing(self, reply: Reply) -> list[ResponseEvent]:
        response, part = responses.ended(self._response, reply), responses.output_text(reply)
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
