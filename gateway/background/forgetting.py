"""Deletion of the KV of deleted and replaced documents, from every tier.

The commit that removes a document records its orphans: contents that no document of the tenant has any more. A deletion
drops their KV before it is confirmed. Queries that found the document earlier must not bring it back, which the
controller prevents until it restarts. So orphans stay recorded until no such query can be running, and are then dropped
again. The same sweep drops the KV of replaced documents, and of deletions that failed because a part was away.
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
    """Deletes documents with their KV, and sweeps the KV of orphaned contents."""

    def __init__(self, retriever: Retriever, controller: Controller, settings: GatewaySettings) -> None:
        self._retriever = retriever
        self._controller = controller
        self._timeout_s = settings.query_timeout_s

    async def delete_document(self, tenant: str, collection: str, document_id: str) -> None:
        """Delete a document. When this returns or raises UnknownDocument, its KV is gone from every tier.

        Raises UnknownCollection, UnknownDocument, or Unavailable. After Unavailable, the caller may retry; a sweep
        completes the deletion in any case.
        """
        try:
            await self._retriever.delete_document(tenant, collection, document_id)
        except UnknownDocument:
            # An earlier deletion may have failed halfway.
            await self._drop(await self._retriever.orphans_of(tenant, collection, document_id))
            raise
        await self._drop(await self._retriever.orphans_of(tenant, collection, document_id))

    async def sweep(self) -> None:
        """Drop the contents that have been orphans for longer than any query runs. Raises Unavailable."""
        while orphans := await self._retriever.orphans(self._timeout_s, _AT_ONCE):
            await self._drop(orphans)
            await self._retriever.forget_orphans(orphans)

    @asynccontextmanager
    async def sweeping(self) -> AsyncIterator[None]:
        """Sweep at intervals while the context is open."""
        # Orphans that a failed sweep leaves stay recorded for the next one.
        async with repeated(self.sweep, min(self._timeout_s, _LONGEST_PAUSE_S)):
            yield

    async def _drop(self, orphans: Sequence[Orphan]) -> None:
        together: dict[tuple[str, str], list[Orphan]] = defaultdict(list)
        for orphan in orphans:
            together[namespace_of(orphan.tenant), orphan.gone_at.store].append(orphan)
        deadline = Deadline(self._timeout_s, "The document's KV was not dropped")
        for (namespace, _), gone in together.items():
            contents = tuple(orphan.content_hash for orphan in gone)
            # All of them were orphans when the last one became one: whoever returns is an orphan no more.
            last = max(gone, key=lambda orphan: orphan.gone_at.number)
            await deadline.wait(self._controller.delete_document(DocumentDeletion(contents, namespace, last.gone_at)))
