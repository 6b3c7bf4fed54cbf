"""What becomes of the KV of deleted and replaced documents: it goes, from every tier.

The store notes, in the commit that removes a document, which contents no document of the tenant has any more: orphans.
A deletion drops their KV before it is confirmed, and the controller sees to it that queries that had found the document
before do not bring it back. A controller that was started anew since then does not know, so orphans stay noted until no
such query can be left, and are dropped again then. That also serves what was replaced, and what a deletion did not come
to drop because a part went away: nothing is forgotten before it is gone.
"""

from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from gateway.deadline import Deadline
from gateway.limits.auth import namespace_of
from gateway.settings import GatewaySettings
from protocol.cache import DocumentDeletion
from protocol.documents import Orphan
from protocol.errors import UnknownDocument
from protocol.parts import Controller, Retriever
from protocol.repeating import repeated

_AT_ONCE = 1000
_LONGEST_PAUSE_S = 30.0


class Forgetting:
    """Deletes documents with all that was made of them, and sees to what others left behind."""

    def __init__(self, retriever: Retriever, controller: Controller, settings: GatewaySettings) -> None:
        self._retriever = retriever
        self._controller = controller
        self._timeout_s = settings.query_timeout_s

    async def delete_document(self, tenant: str, collection: str, document_id: str) -> None:
        """Remove a document; when this returns, or raises UnknownDocument, its KV is gone from every tier.

        Raises UnknownCollection, UnknownDocument or Unavailable; after the last it is to be called again, though what
        was begun is also brought to its end without that.
        """
        try:
            await self._retriever.delete_document(tenant, collection, document_id)
        except UnknownDocument:
            # It may be gone because a deletion before this one got no further.
            await self._drop(await self._retriever.orphans_of(tenant, collection, document_id))
            raise
        await self._drop(await self._retriever.orphans_of(tenant, collection, document_id))

    async def sweep(self) -> None:
        """Drop what is orphaned for longer than any query runs, and forget it. Raises Unavailable."""
        while orphans := await self._retriever.orphans(self._timeout_s, _AT_ONCE):
            await self._drop(orphans)
            await self._retriever.forget_orphans(orphans)

    @asynccontextmanager
    async def sweeping(self) -> AsyncIterator[None]:
        """Sweep every now and then for as long as the context is open."""
        # What could not be dropped stays noted, and the parts come back.
        async with repeated(self.sweep, min(self._timeout_s, _LONGEST_PAUSE_S)):
            yield

    async def _drop(self, orphans: Sequence[Orphan]) -> None:
        contents: dict[str, list[str]] = defaultdict(list)
        for orphan in orphans:
            contents[namespace_of(orphan.tenant)].append(orphan.content_hash)
        deadline = Deadline(self._timeout_s, "The document's KV was not dropped")
        for namespace, gone in contents.items():
            await deadline.wait(self._controller.delete_document(DocumentDeletion(tuple(gone), namespace)))
