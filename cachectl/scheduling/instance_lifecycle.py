"""The lifecycle of instances: they are added, retired, reinstated, and removed."""

from __future__ import annotations

from cachectl.policies.lookahead import Lookahead
from cachectl.scheduling.dispatcher import Dispatcher
from cachectl.scheduling.instances import Instances
from cachectl.scheduling.request import Request
from cachectl.scheduling.request_book import RequestBook
from cachectl.tree.grant import Grant
from cachectl.tree.knowledge_tree import KnowledgeTree
from protocol.kv import NO_PEERS, Peers


class InstanceLifecycle:
    """Adds and removes instances, and finds other instances for the requests that a lost one leaves behind."""

    def __init__(
        self,
        tree: KnowledgeTree,
        lookahead: Lookahead,
        book: RequestBook,
        instances: Instances,
        dispatcher: Dispatcher,
    ) -> None:
        self._tree = tree
        self._lookahead = lookahead
        self._book = book
        self._instances = instances
        self._dispatcher = dispatcher

    def add(self, instance: str, location: str = "", peers: Peers = NO_PEERS, kv_generator: bool = False) -> None:
        """Add an instance at a known location, which takes requests. A known one is unchanged.

        ``peers`` says where it serves the location's KV, if it does. A ``kv_generator`` takes no requests.
        """
        self._tree.add_instance(instance, location, peers, kv_generator)
        self._instances.add(instance)

    def retire(self, instance: str) -> None:
        """Give an instance no more requests. Its running requests continue. Raises UnknownInstance."""
        self._tree.tiers.gpu(instance)
        self._tree.tiers.retired.add(instance)

    def reinstate(self, instance: str, now: float) -> list[Grant]:
        """Give requests again to a retired instance; the grants of those that start. Raises UnknownInstance."""
        self._tree.tiers.gpu(instance)
        self._tree.tiers.retired.discard(instance)
        return self._dispatcher.start_next(instance, now)

    def take_stranded(self) -> list[Request]:
        """Remove the requests that wait for retired instances while there is another, in order of arrival.

        The caller admits them again.
        """
        retired = self._tree.tiers.retired
        if not retired or not self._instances.open():
            return []
        waiting = [each for each in self._book.requests.values() if each.grant is None and each.instance in retired]
        for scheduled in waiting:
            query_id, state = scheduled.request.query_id, self._instances.states[scheduled.instance]
            state.queue.remove(query_id)
            self._book.reconsider(self._lookahead.leave(query_id))
            del self._book.requests[query_id]
            state.release(scheduled)
        return [scheduled.request for scheduled in waiting]

    def ended(self) -> list[str]:
        """Retired instances without any request; none while requests have no other instance to wait for."""
        if not self._instances.open():
            return []
        busy = {scheduled.instance for scheduled in self._book.requests.values()}
        return sorted(self._tree.tiers.retired - busy)

    def remove(self, instance: str) -> list[Request]:
        """Remove a lost instance; the requests that ran on it or waited for it. The caller admits them again.

        Raises UnknownInstance.
        """
        self._tree.remove_instance(instance)
        lost = [scheduled for scheduled in self._book.requests.values() if scheduled.instance == instance]
        for scheduled in lost:
            del self._book.requests[scheduled.request.query_id]
            if scheduled.grant is None:
                self._book.reconsider(self._lookahead.leave(scheduled.request.query_id))
        del self._instances.states[instance]
        return [scheduled.request for scheduled in lost]
