"""Bodies of requests and replies."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import msgspec
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import ValidationError
from starlette.requests import Request
from starlette.responses import Response

from gateway.tasks import SHORT
from gateway.wire.errors import BodyRefused
from gateway.wire.schemas import DocumentBody
from protocol.documents import MOST_TRIPLETS
from protocol.errors import InvalidEncoding, TooManyValues

JSON_LINES = ("application/x-ndjson", "application/jsonl")
"""Media types of JSON lines."""


@contextmanager
def validating(*where: str) -> Iterator[None]:
    """Raise a ValidationError of the block as FastAPI's RequestValidationError, located at ``where``."""
    try:
        yield
    except ValidationError as error:
        problems = [
            {**problem, "loc": (*where, *problem["loc"])}
            for problem in error.errors(include_url=False, include_input=False)
        ]
        raise RequestValidationError(problems) from None


def json_response(content: msgspec.Struct, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A JSON response with this content."""
    return Response(msgspec.json.encode(content), status, headers, "application/json")


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


_SMALL = 2**15
"""Bytes of JSON that are validated within a few milliseconds, for any content."""

_MOST_BESIDE_TEXT = JsonSize(5 * MOST_TRIPLETS, 4 * MOST_TRIPLETS)
"""A triplet is an object of three named texts. Room is left for attributes."""


class _Document(msgspec.Struct, forbid_unknown_fields=True):
    text: str
    filename: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    title: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    attributes: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    triplets: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


def document_from_json(body: bytes) -> DocumentBody:
    """Return the document that a JSON body describes.

    A long body is taken apart first: its text is not validated with all the rest, whose size is bounded. That takes a
    twentieth of the time if the body consists of tiny values. Raises RequestValidationError, InvalidEncoding, and
    TooManyValues.
    """
    if len(body) <= _SMALL:
        _require_utf8(body)
        with validating("body"):
            return DocumentBody.model_validate_json(body)
    try:
        document = msgspec.json.decode(body, type=_Document)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        _require_utf8(body)
        kind = "value_error" if isinstance(error, msgspec.ValidationError) else "json_invalid"
        raise RequestValidationError([{"type": kind, "loc": ("body",), "msg": str(error)}]) from None
    text, document.text = document.text, ""
    rest = msgspec.json.encode(document)
    _require_utf8(rest)
    require_small(rest, _MOST_BESIDE_TEXT)
    with validating("body"):
        read = DocumentBody.model_validate_json(rest)
    return read.model_copy(update={"text": text})


def _require_utf8(body: bytes) -> None:
    try:
        body.decode()
    except UnicodeDecodeError as error:
        raise InvalidEncoding(f"The body is not UTF-8: {error.reason} at byte {error.start}.") from None
