"""The numbers of orphans, which each shard gives out for itself, made unique over all shards."""

from collections import defaultdict
from collections.abc import Iterable

from msgspec.structs import replace

from protocol.documents import Orphan


def numbered(orphans: Iterable[Orphan], shard: int, shards: int) -> list[Orphan]:
    """A shard's orphans under numbers that no other shard's have; their order stays."""
    return [replace(orphan, number=orphan.number * shards + shard) for orphan in orphans]


def by_shard(orphans: Iterable[Orphan], shards: int) -> dict[int, list[Orphan]]:
    """The orphans as the shards know them that they came from."""
    found: dict[int, list[Orphan]] = defaultdict(list)
    for orphan in orphans:
        number, shard = divmod(orphan.number, shards)
        found[shard].append(replace(orphan, number=number))
    return found
