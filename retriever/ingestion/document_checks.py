"""The checks that every uploaded document passes before it is queued."""

import math
import re

from protocol.errors import EmptyDocument, InvalidRequest
from protocol.filters import Attributes, AttributeValue
from retriever.loaders.base import clean
from retriever.store.incoming_document import IncomingDocument

_LONGEST_NAME = 1024
_UNWRITABLE = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")


def checked_document(
    document_id: str,
    text: str,
    filename: str | None,
    title: str | None,
    attributes: Attributes,
    pages: tuple[int, ...] = (),
) -> IncomingDocument:
    """Check and clean a document. The file name defaults to the id. Raises InvalidRequest or EmptyDocument."""
    text = clean(text)
    if not text:
        raise EmptyDocument("the document has no text")
    checked_name(document_id, "document_id")
    return IncomingDocument(
        document_id=document_id,
        text=text,
        filename=checked_name(filename, "filename") if filename else document_id,
        title=" ".join(clean(title).split()) or None if title else None,
        attributes=_checked_attributes(attributes),
        pages=pages,
    )


def checked_name(name: str, param: str) -> str:
    """Return a document id, collection or file name that can be stored and shown. Raises InvalidRequest."""
    if not name.strip():
        raise InvalidRequest(f"{param} is empty", param=param)
    if len(name) > _LONGEST_NAME:
        raise InvalidRequest(f"{param} is longer than {_LONGEST_NAME} characters", param=param)
    if _UNWRITABLE.search(name):
        raise InvalidRequest(f"{param} contains a control character or a lone surrogate", param=param)
    return name


def _checked_attributes(attributes: Attributes) -> Attributes:
    """Return the attributes with every number as a float, as in JSON. Raises InvalidRequest."""
    return {checked_name(key, "attributes"): _checked_value(value) for key, value in attributes.items()}


def _checked_value(value: AttributeValue) -> AttributeValue:
    if isinstance(value, bool):
        return value
    if isinstance(value, str):
        if re.search(r"[\x00\ud800-\udfff]", value):
            raise InvalidRequest("an attribute contains a NUL or a lone surrogate", param="attributes")
        return value
    if isinstance(value, int | float) and math.isfinite(value):
        return float(value)
    raise InvalidRequest("an attribute must be a string, a finite number or a boolean", param="attributes")
