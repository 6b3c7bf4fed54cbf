"""An OpenAI-compatible endpoint that answers chats."""

import asyncio
from http import HTTPStatus
from typing import NamedTuple
from urllib.parse import urlsplit

import msgspec
import openai
import structlog
from openai.types.chat import ChatCompletionMessageParam
from openai.types.chat.completion_create_params import ResponseFormat

from protocol.errors import ConfigError, Unavailable
from retriever.settings import LlmSettings

_log = structlog.get_logger(__name__)

_LONGEST_PAUSE_S = 8.0
"""The client's own longest pause before a retry. An endpoint may ask for longer ones."""

_LONGEST_REASON = 500
"""Characters of an endpoint's reason that errors repeat. A proxy's may be a whole page."""


_REFUSALS = {HTTPStatus.BAD_REQUEST, HTTPStatus.REQUEST_ENTITY_TOO_LARGE, HTTPStatus.UNPROCESSABLE_ENTITY}


class NoAnswer(Exception):
    """The endpoint can be used, but does not answer this request."""


class RequestRefused(NoAnswer):
    """The endpoint refuses a request for what it asks."""


class ChatReply(NamedTuple):
    """The text of a reply, and whether ``max_tokens`` cut it."""

    text: str
    cut: bool


class _Message(msgspec.Struct):
    content: str | None = None


class _Choice(msgspec.Struct):
    message: _Message
    finish_reason: str | None = None


class _Completion(msgspec.Struct):
    choices: list[_Choice]


class ChatEndpoint:
    """Asks for one answer at temperature 0, of a bounded length and time.

    The client retries transient failures (connections, 429, 5xx) ``max_retries`` times with growing pauses. An endpoint
    that refuses a ``response_format`` is asked without one from then on. Raises ConfigError if the address or the key
    cannot be used.
    """

    def __init__(self, settings: LlmSettings, answer_format: ResponseFormat) -> None:
        self._settings = settings
        self._format = answer_format
        self._structured = settings.structured
        # An endpoint without keys ignores this one. Without any, the client would send that of OpenAI's own endpoint.
        key = settings.api_key.get_secret_value() if settings.api_key else "none"
        if not key.isascii():
            raise ConfigError("the API key of retriever.graph.llm has characters that HTTP cannot send")
        try:
            _ = urlsplit(settings.base_url).port
        except ValueError as error:
            raise ConfigError(f"retriever.graph.llm.base_url is no URL: {error}") from error
        self._client = openai.AsyncOpenAI(
            base_url=settings.base_url, api_key=key, timeout=settings.timeout_s, max_retries=settings.max_retries
        )
        # The client's own limits are for each read.
        self._longest_s = (settings.max_retries + 1) * (settings.timeout_s + _LONGEST_PAUSE_S)

    async def ask(self, messages: list[ChatCompletionMessageParam]) -> ChatReply:
        """Return the answer to some messages. Raises Unavailable, ConfigError or NoAnswer."""
        if not self._structured:
            return await self._ask(messages, openai.omit)
        try:
            return await self._ask(messages, self._format)
        except RequestRefused as error:
            reply = await self._ask(messages, openai.omit)
            self._structured = False
            _log.warning("the graph's model is asked without response_format, which it refuses", reason=str(error))
            return reply

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()

    async def _ask(
        self, messages: list[ChatCompletionMessageParam], answer_format: ResponseFormat | openai.Omit
    ) -> ChatReply:
        try:
            async with asyncio.timeout(self._longest_s):
                reply = await self._client.chat.completions.with_raw_response.create(
                    model=self._settings.model,
                    messages=messages,
                    temperature=0,
                    max_tokens=self._settings.max_tokens,
                    response_format=answer_format,
                    extra_body=self._settings.extra_body,
                )
            # The client does not check what it parses.
            completion = msgspec.json.decode(reply.content, type=_Completion)
        except (
            TimeoutError, openai.APIConnectionError, openai.RateLimitError, openai.InternalServerError
        ) as error:  # fmt: skip
            raise Unavailable(f"the graph's model does not answer: {_reason(error)}") from error
        except msgspec.DecodeError as error:
            raise NoAnswer(f"the reply is no chat completion: {_reason(error)}") from error
        except openai.OpenAIError as error:
            if isinstance(error, openai.APIStatusError) and error.status_code in _REFUSALS:
                raise RequestRefused(_reason(error)) from error
            raise ConfigError(f"the graph's model cannot be used: {_reason(error)}") from error
        for choice in completion.choices[:1]:
            return ChatReply(choice.message.content or "", choice.finish_reason == "length")
        return ChatReply("", cut=False)


def _reason(error: Exception) -> str:
    return str(error)[:_LONGEST_REASON] or type(error).__name__
