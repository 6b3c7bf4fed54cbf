"""Batches: the JSON-lines body of many documents."""

from typing import NamedTuple

import msgspec

from protocol.documents import JobError
from protocol.errors import EmptyDocument, InvalidEncoding, InvalidRequest, RagtreeError
from protocol.filters import Attributes
from retriever.loaders.base import clean
from retriever.store.incoming import IncomingDocument, checked_attributes, checked_name

MOST_LINES = 100_000
"""Lines of a batch: each costs memory and a row of the queue, however short it is."""


class ParsedBatch(NamedTuple):
    """The documents of a batch with their lines, counted from 1, and the errors of the lines that hold none."""

    documents: list[tuple[int | None, IncomingDocument]]
    errors: list[JobError]


class _Line(msgspec.Struct, frozen=True):
    id: str
    text: str
    filename: str | None = None
    title: str | None = None
    attributes: Attributes = {}


_decoder = msgspec.json.Decoder(_Line)


def batch_lines(jsonl: bytes) -> list[bytes]:
    """The lines of a batch, blank ones too, without the mark that some editors put before the first.

    Raises InvalidRequest for too many.
    """
    if jsonl.count(b"\n") > MOST_LINES:
        raise InvalidRequest(f"a batch has at most {MOST_LINES:,} lines", param="body")
    return jsonl.removeprefix(b"\xef\xbb\xbf").split(b"\n")


def parse_batch(jsonl: bytes) -> ParsedBatch:
    """Read a batch; blank lines are nothing. Raises EmptyDocument if no line is left, InvalidRequest for too many."""
    batch = ParsedBatch([], [])
    for number, line in enumerate(batch_lines(jsonl), start=1):
        if not line.strip():
            continue
        try:
            batch.documents.append((number, _document(line)))
        except RagtreeError as error:
            batch.errors.append(JobError(error.code, error.message, line=number))
    if not batch.documents and not batch.errors:
        raise EmptyDocument("the batch has no line")
    return batch


def _document(line: bytes) -> IncomingDocument:
    try:
        fields = _decoder.decode(line)
    except UnicodeDecodeError as error:
        raise InvalidEncoding("the line is not UTF-8") from error
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidRequest(f"not a document in JSON: {error}") from error
    return incoming(fields.id, fields.text, fields.filename, fields.title, fields.attributes)


def incoming(
    document_id: str, text: str, filename: str | None, title: str | None, attributes: Attributes
) -> IncomingDocument:
    """A checked document; a document without a file name is named by its id. Raises InvalidRequest or EmptyDocument."""
    text = clean(text)
    if not text:
        raise EmptyDocument("the document has no text")
    checked_name(document_id, "document_id")
    return IncomingDocument(
        document_id=document_id,
        text=text,
        filename=checked_name(filename, "filename") if filename else document_id,
        title=" ".join(clean(title).split()) or None if title else None,
        attributes=checked_attributes(attributes),
    )
