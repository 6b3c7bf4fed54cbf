"""Split a batch of documents by shard."""

from collections.abc import Callable

import msgspec

from protocol.errors import EmptyDocument
from retriever.ingestion.batch_parser import batch_lines


class _Named(msgspec.Struct, frozen=True):
    id: str


_decoder = msgspec.json.Decoder(_Named)


def split_batch(jsonl: bytes, shard_of_id: Callable[[str], int]) -> dict[int, bytes]:
    """Return a batch for each shard that gets documents. ``shard_of_id`` maps a document id to its shard.

    Lines of other shards are left blank, so that a shard reports errors with the line numbers of the whole batch.
    Raises EmptyDocument if there are no lines, InvalidRequest if there are too many.
    """
    lines = batch_lines(jsonl)
    parts: dict[int, list[bytes]] = {}
    for number, line in enumerate(lines):
        if line.strip():
            part = parts.setdefault(shard_of_id(_document_id(line)), [])
            part += [b""] * (number - len(part))
            part.append(line)
    if not parts:
        raise EmptyDocument("the batch has no lines")
    return {shard: b"\n".join(part) for shard, part in sorted(parts.items())}


def _document_id(line: bytes) -> str:
    try:
        return _decoder.decode(line).id
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        # The shard of the empty id reports the error.
        return ""
