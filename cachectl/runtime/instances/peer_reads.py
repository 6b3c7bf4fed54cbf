"""Learns from what instances read at other locations: how fast a link is, and whether it works."""

from collections.abc import Callable, Iterable, Mapping

import structlog

from cachectl.tree.knowledge_tree import KnowledgeTree
from protocol.kv import PeerRead
from protocol.tiers import Tier

_FIRST_PAUSE_S = 2.0
_LONGEST_PAUSE_S = 60.0

_log = structlog.get_logger(__name__)


class PeerReads:
    """Records reads, and closes links that fail: at first for two seconds, then twice as long, up to a minute.

    So a peer that is away costs few queries a timeout, and one that comes back serves again within that minute.
    ``clock`` gives seconds on any monotonic scale. ``tokens`` were read in all, and ``failures`` reads failed.
    """

    def __init__(self, tree: KnowledgeTree, clock: Callable[[], float]) -> None:
        self._tree = tree
        self._links = tree.tiers.links
        self._clock = clock
        # By link: how long it was closed the last time, and when it opens again, if it is closed.
        self._pauses: dict[tuple[str, str], float] = {}
        self._closed: dict[tuple[str, str], float] = {}
        self.tokens = 0
        self.failures = 0

    def record(self, instance: str, reads: Iterable[PeerRead]) -> None:
        """Record what an instance has read; nothing of one that is gone."""
        for read in reads if instance in self._tree.tiers.gpus else ():
            link = (instance, read.location)
            self.tokens += read.tokens
            if read.failed:
                self.failures += 1
                self._close(link)
                continue
            self._pauses.pop(link, None)
            if read.tokens:
                self._links.measured(instance, read.location, read.tokens, read.seconds)

    def lose(self, lost: Mapping[str, Iterable[tuple[bytes, Tier]]]) -> None:
        """Remove copies that other locations were to serve and do not have: nodes and tiers, by location."""
        for location, copies in lost.items():
            self._tree.grants.lose_at(location, copies)

    def reopen(self) -> None:
        """Reopen the links whose pause is over. Call this regularly."""
        now = self._clock()
        for link in [link for link, until in self._closed.items() if until <= now]:
            del self._closed[link]
            self._links.reopen(*link)

    def forget(self, instance: str) -> None:
        """Forget what is known about an instance's links: it has ended."""
        for links in (self._pauses, self._closed):
            for link in [link for link in links if link[0] == instance]:
                del links[link]

    def _close(self, link: tuple[str, str]) -> None:
        if link in self._closed:
            # Plans that were under way when the first read failed.
            return
        pause = min(2 * self._pauses.get(link, _FIRST_PAUSE_S / 2), _LONGEST_PAUSE_S)
        self._pauses[link] = pause
        self._closed[link] = self._clock() + pause
        instance, location = link
        self._links.close(instance, location)
        _log.warning("a peer could not be read from", instance=instance, location=location, again_in_s=pause)
