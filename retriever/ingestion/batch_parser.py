"""The JSON Lines body of a batch upload."""

from typing import NamedTuple

import msgspec

from protocol.documents import JobError
from protocol.errors import EmptyDocument, InvalidEncoding, InvalidRequest, RagtreeError
from protocol.filters import Attributes
from protocol.graph import Triplet
from retriever.ingestion.document_checks import checked_document
from retriever.store.incoming import IncomingDocument

MOST_LINES = 100_000
"""Most lines of a batch. Each line costs memory and a row of the queue, however short it is."""


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
    """Split a batch into lines, including blank ones, without a leading byte order mark.

    Raises InvalidRequest if there are too many lines.
    """
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
