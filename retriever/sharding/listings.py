"""What several shards list, as one list."""

from collections import defaultdict
from collections.abc import Iterable, Sequence

from protocol.documents import CollectionInfo, DocumentPage


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
