"""A document on its way in, between its loader and its place in the store."""

import math
import re

import msgspec
from blake3 import blake3

from protocol.errors import InvalidRequest
from protocol.filters import Attributes, AttributeValue

_LONGEST_NAME = 1024
_UNWRITABLE = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")


class IncomingDocument(msgspec.Struct, frozen=True):
    """A document whose text is known and checked."""

    document_id: str
    text: str
    filename: str
    title: str | None
    attributes: Attributes

    @property
    def content_hash(self) -> str:
        """The hash of all that a reader of the document could see, so that an equal upload changes nothing."""
        seen = (self.text, self.filename, self.title, sorted(self.attributes.items()))
        return blake3(msgspec.msgpack.encode(seen)).hexdigest()


def checked_name(name: str, param: str) -> str:
    """A document id, collection or file name that can be stored and shown. Raises InvalidRequest."""
    if not name.strip():
        raise InvalidRequest(f"{param} is empty", param=param)
    if len(name) > _LONGEST_NAME:
        raise InvalidRequest(f"{param} is longer than {_LONGEST_NAME} characters", param=param)
    if _UNWRITABLE.search(name):
        raise InvalidRequest(f"{param} has a character that cannot be written", param=param)
    return name


def checked_attributes(attributes: Attributes) -> Attributes:
    """Attributes with numbers as floats, as JSON knows no other. Raises InvalidRequest."""
    return {checked_name(key, "attributes"): _checked_value(value) for key, value in attributes.items()}


def _checked_value(value: AttributeValue) -> AttributeValue:
    if isinstance(value, bool):
        return value
    if isinstance(value, str):
        if re.search(r"[\x00\ud800-\udfff]", value):
            raise InvalidRequest("an attribute has a character that cannot be written", param="attributes")
        return value
    if isinstance(value, int | float) and math.isfinite(value):
        return float(value)
    raise InvalidRequest("an attribute is a string, a finite number or a truth value", param="attributes")
