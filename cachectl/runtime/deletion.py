"""Deletes documents from the tree, the tiers and the engines."""

import asyncio
from collections.abc import Collection, Iterable

from cachectl.runtime.deliveries import Deliveries
from cachectl.runtime.leases import Leases
from cachectl.runtime.messages import Namespaces
from cachectl.runtime.tombstones import Tombstones
from cachectl.scheduling.scheduler import Scheduler
from protocol.cache import DocumentDeletion
from protocol.errors import DeadlineExceeded


class Deletion:
    """Deletes documents so that none of their KV is left anywhere, within ``timeout_s`` seconds.

    It adds ``tombstones``, so that queries which found the documents earlier do not bring them back.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        leases: Leases,
        deliveries: Deliveries,
        tombstones: Tombstones,
        namespaces: Namespaces,
        timeout_s: float,
    ) -> None:
        self._scheduler = scheduler
        self._tree = scheduler.tree
        self._leases = leases
        self._deliveries = deliveries
        self._tombstones = tombstones
        self._namespaces = namespaces
        self._timeout_s = timeout_s

    async def delete(self, deletion: DocumentDeletion) -> int:
        """Delete documents in a tenant's namespaces, those of adapters included, or in all.

        Returns the number of nodes that were removed.

        No query finds the documents from now on. The call returns when the engines have dropped and forgotten them,
        and the queries that use them now have ended; nothing of them is kept meanwhile. If no namespace is named, the
        engines forget the documents in every namespace seen so far. Without an executor, the call returns at once and
        the next plans carry the drops.

        A machine without instances is forgotten, if others have any: when it comes back, it drops all its KV.

        Raises DeadlineExceeded, EngineNotReady if a machine with instances has none that takes orders, or what
        ``Executor.carry_out`` raises; calling again continues the deletion.
        """
        contents = deletion.contents
        namespace = None if deletion.namespace is None else self._namespaces.inside(deletion.namespace)
        if deletion.gone_at is not None:
            self._tombstones.add(contents, namespace, deletion.gone_at)
        self._forget_deserted()
        queries = self._queries(contents, namespace)
        gone = sum(self._tree.delete(content, namespace) for content in contents)
        self._scheduler.branches.delete(contents, namespace)
        if not self._deliveries.possible:
            return gone
        within = sorted(self._namespaces.seen) if deletion.namespace is None else [deletion.namespace]
        forget = [(plain, content) for plain in within for content in contents]
        completion = self._leases.completion_of(queries)
        for content in contents:
            self._tree.registry.block(content, namespace)
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._deliveries.everywhere(forget)
                if queries:
                    await completion
                    # Branches that these queries used could not be dropped earlier.
                    self._scheduler.branches.delete(contents, namespace)
                    await self._deliveries.everywhere(forget)
        except TimeoutError:
            raise DeadlineExceeded("queries that use the document take too long; try again") from None
        finally:
            completion.cancel()
            for content in contents:
                self._tree.registry.unblock(content, namespace)
        return gone

    def _forget_deserted(self) -> None:
        if self._scheduler.instances.open():
            for location in self._tree.tiers.deserted:
                self._scheduler.remove_location(location)

    def _queries(self, contents: Collection[str], namespace: str | None) -> set[str]:
        """The queries that use one of the documents or its facts, and those whose plans may still move its copies."""
        doomed = {key.hex() for content in contents for key in self._keys(content, namespace)}
        moving = {
            query_id
            for query_id, grant in self._tree.grants.open.items()
            if not grant.prefilled and any(move.node in doomed for move in grant.moves)
        }
        return moving | self._scheduler.book.naming(contents, namespace)

    def _keys(self, content: str, namespace: str | None) -> Iterable[bytes]:
        below = self._tree.registry.nodes_in(content, namespace)
        for node in below:
            below += node.children
            yield node.key
