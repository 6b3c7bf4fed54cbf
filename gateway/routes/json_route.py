"""Routes whose JSON bodies are bounded in what they consist of, besides their bytes.

Parsing and validation take time for each value, not for each byte: 256 KiB may be one long question, or 130,000
numbers.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple

from fastapi import HTTPException
from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import Response

from gateway.off_loop import SHORT
from gateway.wire.errors import http_error
from protocol.errors import RagtreeError, TooManyValues


class JsonSize(NamedTuple):
    """What a JSON body consists of: strings, numbers and other ``values``, and the ``names`` of its objects' fields."""

    values: int
    names: int

    def within(self, most: "JsonSize") -> bool:
        """Whether a body that consists of at most ``most`` may have as many."""
        return self.values <= most.values and self.names <= most.names


MOST = JsonSize(12_500, 2000)
"""Room for a filter with the 10,000 values that the retriever compares with."""
_MOST_FIELDS = 100


def json_size(body: bytes, most: JsonSize = MOST) -> JsonSize:
    """At least what a JSON body consists of, and exact if that is more than ``most``."""
    found = _marks(body)
    if found.within(most):
        return found
    # Texts have commas and brackets, too. Without escapes, every other piece between quotation marks is a text.
    plain = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    texts = plain.count(b'"') // 2
    if texts > most.values + most.names:
        # Each of them is a value, or the name of one.
        return JsonSize(texts - most.names, texts - most.values)
    return _marks(b"".join(plain.split(b'"')[::2]))


def require_small(body: bytes, most: JsonSize = MOST) -> None:
    """Raise TooManyValues for a JSON body of more values, or names of fields, than ``most``."""
    if not json_size(body, most).within(most):
        raise TooManyValues(
            f"The body has more than {most.values:,} JSON values, or {most.names:,} names of fields, the limits of "
            "this path."
        )


class BodyRefused(HTTPException):
    """An error of ours about a body. While it reads one, FastAPI turns all others but this kind into a 400."""

    def __init__(self, error: RagtreeError) -> None:
        super().__init__(http_error(error).status, error.message)
        self.error = error


class JsonRoute(APIRoute):
    """A route that refuses JSON bodies of too many values or names before it parses them."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The framework's handler, on a request whose JSON is bounded."""
        handle = super().get_route_handler()

        async def bounded(request: Request) -> Response:
            return await handle(_BoundedRequest(request.scope, request.receive))

        return bounded


class _BoundedRequest(Request):
    async def json(self) -> Any:  # noqa: ANN401  # as in the class above
        body = await self.body()
        try:
            require_small(body)
        except TooManyValues as error:
            raise BodyRefused(error) from error
        parsed = await super().json()
        if isinstance(parsed, dict) and len(parsed) > _MOST_FIELDS:
            # The framework would describe each unknown one.
            raise BodyRefused(TooManyValues(f"The body has more than {_MOST_FIELDS} fields, the limit of this path."))
        if len(body) > SHORT:
            # Parsing and validation each have a turn of the loop.
            await asyncio.sleep(0)
        return parsed


def _marks(body: bytes) -> JsonSize:
    return JsonSize(1 + body.count(b",") + body.count(b"[") + body.count(b"{"), body.count(b":"))
