"""A document as JSON, read without holding the gateway's loop: Python's lock is held while JSON is parsed."""

import msgspec
from fastapi.exceptions import RequestValidationError

from gateway.routes.bodies import validating
from gateway.routes.json_route import JsonSize, require_small
from gateway.wire.schemas import DocumentBody
from protocol.documents import MOST_TRIPLETS
from protocol.errors import InvalidEncoding

_SMALL = 2**15
"""Bytes of JSON that are validated within a few milliseconds, whatever they consist of."""

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
