"""What several shards list, as one list."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

from protocol.documents import CollectionInfo, DocumentPage, RetrieverStats


def merged_page(pages: Sequence[DocumentPage], limit: int) -> DocumentPage:
    """The first page of what these are first pages of, each of at most ``limit`` documents behind one and the same id.

    Cursors are document ids.
    """
    documents = sorted((info for page in pages for info in page.documents), key=lambda info: info.document_id)
    more = len(documents) > limit or any(page.next_cursor is not None for page in pages)
    return DocumentPage(tuple(documents[:limit]), documents[:limit][-1].document_id if more else None)


def merged_collections(listed: Iterable[Sequence[CollectionInfo]]) -> list[CollectionInfo]:
    """The collections by name, with all that the shards have of each."""
    held: dict[str, list[CollectionInfo]] = defaultdict(list)
    for infos in listed:
        for info in infos:
            held[info.name].append(info)
    return [
        CollectionInfo(name, sum(part.documents for part in parts), sum(part.chunks for part in parts))
        for name, parts in sorted(held.items())
    ]


def merged_stats(stats: Iterable[RetrieverStats]) -> RetrieverStats:
    """The counts together, and the disk that is the fullest."""
    parts = list(stats)
    ingested: Counter[str] = sum((Counter(part.ingested) for part in parts), Counter())
    fullest = min(parts, key=lambda part: part.disk_free_bytes / max(1, part.disk_bytes))
    return RetrieverStats(
        {outcome: ingested[outcome] for outcome in parts[0].ingested},
        sum(part.queued for part in parts),
        fullest.disk_bytes,
        fullest.disk_free_bytes,
    )
