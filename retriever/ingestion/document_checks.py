"""The checks that every uploaded document passes before it is queued, alone or as a line of a batch."""

import math
import re
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from protocol.documents import MOST_TRIPLETS, JobError
from protocol.errors import EmptyDocument, InvalidEncoding, InvalidRequest, RagtreeError
from protocol.filters import Attributes, AttributeValue
from protocol.graph import Triplet
from retriever.graph.names import LONGEST_NAME, name_key, tidy, words_of
from retriever.loaders.base import clean
from retriever.store.incoming import IncomingDocument

_LONGEST_NAME = 1024
_UNWRITABLE = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")

MOST_LINES = 100_000
"""Most lines of a batch. Each line costs memory and a row of the queue, however short it is."""


def checked_document(
    document_id: str,
    text: str,
    filename: str | None,
    title: str | None,
    attributes: Attributes,
    pages: tuple[int, ...] = (),
    triplets: Sequence[Triplet] = (),
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
        triplets=_checked_triplets(triplets),
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


def _checked_triplets(triplets: Sequence[Triplet]) -> tuple[Triplet, ...]:
    """Return the triplets in tidy spelling, equal ones once. Raises InvalidRequest."""
    if len(triplets) > MOST_TRIPLETS:
        raise InvalidRequest(f"a document has at most {MOST_TRIPLETS:,} triplets", param="triplets")
    kept: dict[tuple[str, str, str], Triplet] = {}
    for number, given in enumerate(triplets):
        place = f"triplets[{number}]"
        head, relation, tail = (
            _checked_part(part, f"{place}.{name}") for name, part in zip(Triplet._fields, given, strict=True)
        )
        ends = name_key(head), name_key(tail)
        if ends[0] == ends[1]:
            raise InvalidRequest(f"{place}.tail is the same name as its head", param=f"{place}.tail")
        kept.setdefault((*ends, relation), Triplet(head, relation, tail))
    return tuple(kept.values())


def _checked_part(part: str, param: str) -> str:
    """Return the name of an entity or a relation as people read it. Raises InvalidRequest."""
    name = tidy(checked_name(part, param))
    if not words_of(name):
        raise InvalidRequest(f"{param} has no letter or digit", param=param)
    # One character may stand for several, and the key has them all.
    if len(name) > LONGEST_NAME or not name_key(name):
        raise InvalidRequest(f"{param} is longer than {LONGEST_NAME} characters", param=param)
    return name


class ParsedBatch(NamedTuple):
    """The documents of a batch with their line numbers from 1, and the errors of invalid lines."""

    documents: list[tuple[int | None, IncomingDocument]]
    errors: list[JobError]


class _Triplet(msgspec.Struct, frozen=True):
    head: str
    relation: str
    tail: str


class _Line(msgspec.Struct, frozen=True):
    id: str
    text: str
    filename: str | None = None
    title: str | None = None
    attributes: Attributes = {}
    triplets: tuple[_Triplet, ...] = ()


_decoder = msgspec.json.Decoder(_Line)


def batch_lines(jsonl: bytes) -> list[bytes]:
    """Split a batch into lines, also blank ones, without a byte order mark. Raises InvalidRequest for too many."""
    if jsonl.count(b"\n") > MOST_LINES:
        raise InvalidRequest(f"a batch has at most {MOST_LINES:,} lines", param="body")
    return jsonl.removeprefix(b"\xef\xbb\xbf").split(b"\n")


def parse_batch(jsonl: bytes) -> ParsedBatch:
    """Parse a batch, skipping blank lines. Raises EmptyDocument if no line is left, InvalidRequest for too many."""
    batch = ParsedBatch([], [])
    for number, line in enumerate(batch_lines(jsonl), start=1):
        if not line.strip():
            continue
        try:
            batch.documents.append((number, _document(line)))
        except RagtreeError as error:
            batch.errors.append(JobError(error.code, error.message, line=number))
    if not batch.documents and not batch.errors:
        raise EmptyDocument("the batch has no lines")
    return batch


def _document(line: bytes) -> IncomingDocument:
    try:
        fields = _decoder.decode(line)
    except UnicodeDecodeError as error:
        raise InvalidEncoding("the line is not UTF-8") from error
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidRequest(f"the line is not a JSON document: {error}") from error
    triplets = [Triplet(*msgspec.structs.astuple(triplet)) for triplet in fields.triplets]
    return checked_document(fields.id, fields.text, fields.filename, fields.title, fields.attributes, triplets=triplets)
