"""Orphan numbers that are unique over all shards. Each shard numbers its own orphans."""

from collections import defaultdict
from collections.abc import Iterable

from msgspec.structs import replace

from protocol.documents import Orphan


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
