"""Deleting documents for good: from the tree at once, then from tiers and engines, and not before plans have ended."""

import asyncio
from collections.abc import Collection, Iterable, Sequence

from cachectl.runtime.deliveries import Deliveries
from cachectl.runtime.leases import Leases
from cachectl.runtime.tombstones import Tombstones
from cachectl.scheduling.scheduler import Scheduler
from protocol.errors import DeadlineExceeded


class Deletion:
    """Deletes documents so that nothing of their KV is left anywhere, within ``timeout_s``.

    ``tombstones`` are put up for them, so that queries which found them before do not bring them back.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        leases: Leases,
        deliveries: Deliveries,
        tombstones: Tombstones,
        timeout_s: float,
    ) -> None:
        self._scheduler = scheduler
        self._tree = scheduler.tree
        self._leases = leases
        self._deliveries = deliveries
        self._tombstones = tombstones
        self._timeout_s = timeout_s

    async def delete(
        self, contents: Collection[str], namespace: str | None, forget: Sequence[tuple[str, str]] = ()
    ) -> int:
        """Delete documents in a namespace of the tree, or in all; how many nodes went. They are not found from now on.

        The engines are to ``forget`` them as well. Returns when that is done, and the queries that have any of these
        documents now have ended; nothing of it is kept meanwhile. Where nobody takes orders it is left to the next
        plans. Raises DeadlineExceeded, and what ``Executor.carry_out`` raises: then a second call goes on.
        """
        self._tombstones.add(contents, namespace)
        queries = self._queries(contents, namespace)
        gone = sum(self._tree.delete(content, namespace) for content in contents)
        if not self._deliveries.possible:
            return gone
        ended = self._leases.end_of(queries)
        for content in contents:
            self._tree.block(content, namespace)
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._deliveries.everywhere(forget)
                if queries:
                    await ended
                    # What they used could not be dropped before.
                    await self._deliveries.everywhere(forget)
        except TimeoutError:
            raise DeadlineExceeded("queries that use the document take too long; try again") from None
        finally:
            ended.cancel()
            for content in contents:
                self._tree.unblock(content, namespace)
        return gone

    def _queries(self, contents: Collection[str], namespace: str | None) -> set[str]:
        """Those that have any of the documents, and those that may yet move what is kept of them."""
        doomed = {key.hex() for content in contents for key in self._keys(content, namespace)}
        moving = {
            query_id
            for query_id, grant in self._tree.grants.open.items()
            if not grant.prefilled and any(move.node in doomed for move in grant.moves)
        }
        return moving | self._scheduler.book.naming(contents, namespace)

    def _keys(self, content: str, namespace: str | None) -> Iterable[bytes]:
        below = [
            node
            for node in self._tree.registry.by_content.get(content, ())
            if namespace is None or node.root.content == namespace
        ]
        for node in below:
            below += node.children.values()
            yield node.key
