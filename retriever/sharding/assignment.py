"""Which shard has what: a document, the lines of a batch, an orphan."""

from collections import defaultdict
from collections.abc import Callable, Iterable

import msgspec
from blake3 import blake3
from msgspec.structs import replace

from protocol.documents import Orphan
from protocol.errors import EmptyDocument
from retriever.ingestion.document_checks import batch_lines


def globally_numbered(orphans: Iterable[Orphan], shard: int, shards: int) -> list[Orphan]:
    """Return a shard's orphans, in order, with numbers that are unique over all shards."""
    return [replace(orphan, number=orphan.number * shards + shard) for orphan in orphans]


def by_shard(orphans: Iterable[Orphan], shards: int) -> dict[int, list[Orphan]]:
    """Group orphans by shard, with the numbers that the shard gave them."""
    found: dict[int, list[Orphan]] = defaultdict(list)
    for orphan in orphans:
        number, shard = divmod(orphan.number, shards)
        found[shard].append(replace(orphan, number=number))
    return found


def shard_of(shards: int, *names: str) -> int:
    """Return the shard, from 0, for these names. Evenly distributed, and equal in every process and release."""
    # Names may contain lone surrogates. The shard refuses them.
    named = "\0".join(names).encode("utf-8", "surrogatepass")
    return int.from_bytes(blake3(named).digest(length=8), "big") % shards


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
