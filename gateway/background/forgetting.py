"""Deletion of the KV of deleted and replaced documents, from every tier.

The commit that removes a document records its orphans: contents that no document of the tenant has any more. A deletion
drops their KV before it is confirmed. Queries that found the document earlier must not bring it back, which the
controller prevents until it restarts. So orphans stay recorded until no such query can be running, and are then dropped
again. The same sweep drops the KV of replaced documents, and of deletions that failed because a part was away.

An orphan that cannot be deleted must not stop the sweep. So each attempt is counted in the store before it begins,
orphans that failed together are tried alone, and after three attempts an orphan is given up. Still, no query gets its
KV: the document is found no more, and the tree has let it go. Another request to delete the document tries it again.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import AbstractAsyncContextManager

import structlog

from gateway.limits.auth import namespace_of
from gateway.metrics.gateway_metrics import GatewayMetrics
from gateway.readiness import Readiness
from gateway.settings import GatewaySettings
from gateway.tasks import Deadline
from protocol.cache import DocumentDeletion
from protocol.documents import Orphan
from protocol.errors import RagtreeError, UnknownDocument
from protocol.parts import Parts
from protocol.repeating import MOST_ATTEMPTS, repeated

_AT_ONCE = 1000
_LONGEST_PAUSE_S = 30.0

log = structlog.get_logger(__name__)


class Forgetting:
    """Deletes documents with their KV, and sweeps the KV of orphaned contents."""

    def __init__(self, parts: Parts, settings: GatewaySettings, readiness: Readiness, metrics: GatewayMetrics) -> None:
        self._retriever, self._controller = parts.retriever, parts.controller
        self._timeout_s = settings.query_timeout_s
        self._readiness = readiness
        self._metrics = metrics

    async def delete_document(self, tenant: str, collection: str, document_id: str) -> None:
        """Delete a document. When this returns or raises UnknownDocument, its KV is gone from every tier.

        Raises UnknownCollection, UnknownDocument, or Unavailable. After Unavailable, the caller may retry; a sweep
        completes the deletion in any case.
        """
        try:
            await self._retriever.delete_document(tenant, collection, document_id)
        except UnknownDocument:
            # An earlier deletion may have failed halfway.
            await self._drop_orphans_of(tenant, collection, document_id)
            raise
        await self._drop_orphans_of(tenant, collection, document_id)

    async def sweep(self) -> None:
        """Drop the contents that have been orphans for longer than any query runs. Raises what the retriever raises.

        A failed deletion waits for the next sweep. While a part is away, nothing is tried.
        """
        failed = bool(self._readiness.missing())
        while not failed and (orphans := await self._retriever.orphans(self._timeout_s, _AT_ONCE)):
            for together in _together(orphans):
                failed |= not await self._attempt(together)

    def sweeping(self) -> AbstractAsyncContextManager[None]:
        """Sweep at intervals while the context is open."""
        # Orphans that a failed sweep leaves stay recorded for the next one.
        return repeated(self.sweep, min(self._timeout_s, _LONGEST_PAUSE_S))

    async def _drop_orphans_of(self, tenant: str, collection: str, document_id: str) -> None:
        orphans = await self._retriever.orphans_of(tenant, collection, document_id)
        for together in _by_store(orphans):
            await self._drop(together)
        # No sweep drops these again, and they are old enough.
        tried = [orphan for orphan in orphans if orphan.attempts >= MOST_ATTEMPTS]
        if tried:
            await self._retriever.forget_orphans(tried)

    async def _attempt(self, orphans: Sequence[Orphan]) -> bool:
        """Drop orphans of one tenant and store, and forget them. Whether that succeeds."""
        reason = "its last attempt ended with a process"
        if not (ended := orphans[0].attempts >= MOST_ATTEMPTS):
            await self._retriever.attempt_orphans(orphans)
            try:
                await self._drop(orphans)
            except RagtreeError as error:
                reason, ended = str(error), orphans[0].attempts + 1 >= MOST_ATTEMPTS
                log.warning("kv_not_deleted", orphans=[orphan.number for orphan in orphans[:3]], reason=reason)
            else:
                await self._retriever.forget_orphans(orphans)
                return True
        if ended:
            await self._retriever.give_up_orphans(orphans, reason)
            log.error("kv_deletion_given_up", orphans=[orphan.number for orphan in orphans], reason=reason)
            self._metrics.deletions_given_up.inc(len(orphans))
        return False

    async def _drop(self, orphans: Sequence[Orphan]) -> None:
        """Drop the KV of orphans of one tenant and store."""
        contents = tuple(orphan.content_hash for orphan in orphans)
        # All of them were orphans when the last one became one: one that returns is an orphan no more.
        last = max(orphans, key=lambda orphan: orphan.gone_at.number)
        deletion = DocumentDeletion(contents, namespace_of(last.tenant), last.gone_at)
        deadline = Deadline(self._timeout_s, "The document's KV was not dropped")
        await deadline.wait(self._controller.delete_document(deletion))


def _together(orphans: Sequence[Orphan]) -> Iterable[Sequence[Orphan]]:
    """The orphans that are dropped by one call: new ones of one tenant and store; those that have failed, alone."""
    yield from _by_store([orphan for orphan in orphans if not orphan.attempts])
    yield from ([orphan] for orphan in orphans if orphan.attempts)


def _by_store(orphans: Iterable[Orphan]) -> Iterable[Sequence[Orphan]]:
    together: dict[tuple[str, str], list[Orphan]] = defaultdict(list)
    for orphan in orphans:
        together[orphan.tenant, orphan.gone_at.store].append(orphan)
    return together.values()
