"""Learns from what instances read: how fast their own tiers and the links to others are, and which links work."""

from collections.abc import Callable, Iterable, Mapping

import structlog

from cachectl.tiers.peer_links import Link
from cachectl.tree.knowledge_tree import KnowledgeTree
from protocol.kv import KvRead
from protocol.tiers import Tier

_FIRST_PAUSE_S = 2.0
_LONGEST_PAUSE_S = 60.0
_TRIAL_S = 10.0
"""How long the plan that tries a link may say nothing: it may have been given up before its read."""
_RATE_S = 60.0
"""A rate that is older is forgotten: it may have been measured in a bad moment, and rule out all reads since."""

_log = structlog.get_logger(__name__)


class KvReads:
    """Records reads, and closes links that fail: at first for two seconds, then twice as long, up to a minute.

    Then one plan tries the link. So a peer that is away costs few queries a timeout, and one that comes back serves
    again within that minute.

    ``clock`` gives seconds on any monotonic scale. ``tokens`` were read at other locations in all, and ``failures``
    reads failed there.
    """

    def __init__(self, tree: KnowledgeTree, clock: Callable[[], float]) -> None:
        self._tree = tree
        self._loads = tree.tiers.loads
        self._links = tree.tiers.links
        self._clock = clock
        # By link: how long it was closed the last time, when it opens again, and when it was last measured.
        self._pauses: dict[Link, float] = {}
        self._closed: dict[Link, float] = {}
        # By link that a plan tries: when another one may.
        self._tried: dict[Link, float] = {}
        self._measured: dict[Link, float] = {}
        # By instance and tier of its own: when a load was last measured.
        self._loaded: dict[tuple[str, Tier], float] = {}
        self.tokens = 0
        self.failures = 0

    def record(self, instance: str, reads: Iterable[KvRead]) -> None:
        """Record what an instance has read; nothing of one that is gone, nor of a location that is gone."""
        tiers = self._tree.tiers
        for read in reads if instance in tiers.gpus else ():
            if not read.location:
                self._loaded[instance, read.tier] = self._clock()
                self._loads.measured(instance, read.tier, read.tokens, read.seconds)
                continue
            link = (instance, read.location)
            self.tokens += read.tokens
            self.failures += read.failed
            if read.location not in tiers.places:
                continue
            if read.failed:
                self._tried.pop(link, None)
                self._close(link, read.address)
            elif read.tokens:
                self._tried.pop(link, None)
                self._pauses.pop(link, None)
                self._measured[link] = self._clock()
                self._links.measured(instance, read.location, read.tier, read.tokens, read.seconds)

    def lose(self, lost: Mapping[str, Iterable[tuple[bytes, Tier]]]) -> None:
        """Remove copies that other locations were to serve and do not have: nodes and tiers, by location."""
        for location, copies in lost.items():
            self._tree.grants.lose_at(location, copies)

    def look(self) -> None:
        """Let plans try the links whose pause is over, and forget what is old. Call this regularly."""
        now = self._clock()
        for link in self._links.tried - self._tried.keys():
            self._tried[link] = now + _TRIAL_S
        for pauses in (self._closed, self._tried):
            for link in [link for link, until in pauses.items() if until <= now]:
                del pauses[link]
                self._links.half_open(*link)
        for link in [link for link, at in self._measured.items() if at + _RATE_S <= now]:
            del self._measured[link]
            self._links.forget_rates(*link)
        self._forget_loads(lambda _, at: at + _RATE_S <= now)
        places = self._tree.tiers.places
        self._forget_where(lambda link: link[1] not in places)

    def forget(self, instance: str) -> None:
        """Forget what is known about an instance's loads and links: it has ended."""
        self._forget_where(lambda link: link[0] == instance)
        self._forget_loads(lambda loader, _: loader == instance)

    def _forget_where(self, gone: Callable[[Link], bool]) -> None:
        for links in (self._pauses, self._closed, self._tried, self._measured):
            for link in [link for link in links if gone(link)]:
                del links[link]

    def _forget_loads(self, old: Callable[[str, float], bool]) -> None:
        for instance, tier in [key for key, at in self._loaded.items() if old(key[0], at)]:
            del self._loaded[instance, tier]
            self._loads.forget(instance, tier)

    def _close(self, link: Link, address: str) -> None:
        if link in self._closed:
            # Plans that were under way when the first read failed.
            return
        pause = min(2 * self._pauses.get(link, _FIRST_PAUSE_S / 2), _LONGEST_PAUSE_S)
        self._pauses[link] = pause
        self._closed[link] = self._clock() + pause
        instance, location = link
        self._links.close(instance, location, address)
        _log.warning("a peer could not be read from", instance=instance, location=location, again_in_s=pause)
