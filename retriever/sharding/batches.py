"""A batch of documents, taken apart by shard."""

from collections.abc import Callable

import msgspec

from protocol.errors import EmptyDocument
from retriever.ingestion.batch import batch_lines


class _Named(msgspec.Struct, frozen=True):
    id: str


_decoder = msgspec.json.Decoder(_Named)


def split_batch(jsonl: bytes, place: Callable[[str], int]) -> dict[int, bytes]:
    """A batch for each shard that gets something; ``place`` says which one a document id belongs to.

    The lines of the others are blank in it, so that a shard reports a broken line under the number that it has in the
    whole. Raises EmptyDocument if there is no line at all, InvalidRequest for too many.
    """
    lines = batch_lines(jsonl)
    parts: dict[int, list[bytes]] = {}
    for number, line in enumerate(lines):
        if line.strip():
            part = parts.setdefault(place(_document_id(line)), [])
            part += [b""] * (number - len(part))
            part.append(line)
    if not parts:
        raise EmptyDocument("the batch has no line")
    return {shard: b"\n".join(part) for shard, part in sorted(parts.items())}


def _document_id(line: bytes) -> str:
    try:
        return _decoder.decode(line).id
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        # Some shard has to say what is wrong with it, and always the same one.
        return ""
