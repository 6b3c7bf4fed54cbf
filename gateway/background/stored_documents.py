"""All documents of a collection, page by page."""

from collections.abc import AsyncIterator

from protocol.documents import DocumentInfo
from protocol.parts import Retriever

_PAGE = 100


async def stored_documents(retriever: Retriever, tenant: str, collection: str) -> AsyncIterator[DocumentInfo]:
    """Yield the documents of a collection, ordered by id. Raises UnknownCollection or Unavailable."""
    after: str | None = None
    while True:
        page = await retriever.list_documents(tenant, collection, _PAGE, after)
        for document in page.documents:
            yield document
        after = page.next_cursor
        if after is None:
            return
