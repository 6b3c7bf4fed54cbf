"""Merge the listings of several shards."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

from protocol.documents import CollectionInfo, DocumentPage, RetrieverStats


def merged_page(pages: Sequence[DocumentPage], limit: int) -> DocumentPage:
    """Merge the pages of all shards, each with up to ``limit`` documents after the same id, into one page.

    Cursors are document ids.
    """
    documents = sorted((info for page in pages for info in page.documents), key=lambda info: info.document_id)
    more = len(documents) > limit or any(page.next_cursor is not None for page in pages)
    return DocumentPage(tuple(documents[:limit]), documents[:limit][-1].document_id if more else None)


def merged_collections(listed: Iterable[Sequence[CollectionInfo]]) -> list[CollectionInfo]:
    """Merge collections by name, adding up their documents and chunks."""
    held: dict[str, list[CollectionInfo]] = defaultdict(list)
    for infos in listed:
        for info in infos:
            held[info.name].append(info)
    return [
        CollectionInfo(
            name,
            sum(part.documents for part in parts),
            sum(part.chunks for part in parts),
            next((part.search for part in parts if part.search is not None), None),
        )
        for name, parts in sorted(held.items())
    ]


def merged_stats(stats: Iterable[RetrieverStats]) -> RetrieverStats:
    """Add up the counts, and report the fullest disk."""
    parts = list(stats)
    ingested: Counter[str] = sum((Counter(part.ingested) for part in parts), Counter())
    fullest = min(parts, key=lambda part: part.disk_free_bytes / max(1, part.disk_bytes))
    return RetrieverStats(
        {outcome: ingested[outcome] for outcome in parts[0].ingested},
        sum(part.queued for part in parts),
        fullest.disk_bytes,
        fullest.disk_free_bytes,
    )
