"""Peer links: which places serve their KV to instances elsewhere, and how long reading from them takes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

from protocol.kv import Peers
from protocol.tiers import Tier

Link: TypeAlias = "tuple[str, str]"
"""An instance that reads, and the place that it reads from."""

_LATENCY_S = 0.002
"""What a read takes besides the bytes."""
_PLANNED = 0.5
"""The share of an instance's time limit that planned reads take: others may use the link at the same time."""
_KEPT = 0.9
"""The weight of what was measured before, at each read."""


class _Rate:
    """The seconds and tokens of an instance's reads from a tier of a location, the latest ones weighing most."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.tokens = 0.0


class PeerLinks:
    """Links from instances to other places, which are locations and disks, whose instances serve what lies there.

    A token of host memory takes ``token_s`` seconds, into the reader's blocks, until reads are measured. A link whose
    reads fail is closed for a while: nothing is planned over it. Then one plan tries it, and it stays closed for others
    until that one's read has gone well. Links ``exist`` if more than one location has an instance that serves its KV.
    """

    def __init__(self, token_s: float = 0.0) -> None:
        self._token_s = token_s
        # The location of each instance that serves.
        self._serving: dict[str, str] = {}
        self.exist = False
        # By place: the addresses of the instances there, the one to read from first.
        self._servers: dict[str, dict[str, tuple[str, ...]]] = {}
        self._longest: dict[str, float] = {}
        self._closed: set[Link] = set()
        # The links that the next plan tries.
        self._half_open: set[Link] = set()
        # The links that a plan tries now.
        self.tried: set[Link] = set()
        self._rates: dict[Link, dict[Tier, _Rate]] = {}

    def join(self, instance: str, places: Sequence[str], peers: Peers) -> None:
        """Read what is at these places from an instance there, if it serves, and let it read what others serve.

        The first place is its location.
        """
        if peers.addresses:
            self._serving[instance] = places[0]
            self._count()
            for place in places:
                self._servers.setdefault(place, {})[instance] = peers.addresses
            self._longest[instance] = _PLANNED * peers.timeout_s

    def remove_instance(self, instance: str) -> None:
        """Forget an instance, as a server and as a reader."""
        self._serving.pop(instance, None)
        self._count()
        for place in list(self._servers):
            servers = self._servers[place]
            servers.pop(instance, None)
            if not servers:
                del self._servers[place]
        self._longest.pop(instance, None)
        self._forget_where(lambda link: link[0] == instance)

    def _count(self) -> None:
        # Every lookup asks whether there are links, so that is not counted then.
        self.exist = len(set(self._serving.values())) > 1

    def remove_place(self, place: str) -> None:
        """Forget the links to a place that has no instance any more."""
        self._forget_where(lambda link: link[1] == place)

    def longest_s(self, instance: str) -> float:
        """How long the reads that are planned for one prompt of an instance may be expected to take."""
        return self._longest.get(instance, 0.0)

    def serves(self, place: str, instance: str) -> bool:
        """Whether an instance can read what is at a place: both take part, and the link is open."""
        return place in self._servers and instance in self._longest and (instance, place) not in self._closed

    def addresses(self, place: str) -> tuple[str, ...]:
        """The addresses of an instance that serves a place, one for each rank; empty if there is none."""
        return next(iter(self._servers.get(place, {}).values()), ())

    def seconds(self, instance: str, place: str, tokens: int, tier: Tier, slower_s: float = 0.0) -> float:
        """Seconds that an instance takes to read ``tokens`` from a tier of a place into its blocks.

        Until reads of that tier are measured, it takes ``slower_s`` longer than host memory is assumed to take.
        """
        rate = self._rates.get((instance, place), {}).get(tier)
        if rate is None or not rate.tokens:
            return _LATENCY_S + tokens * self._token_s + slower_s
        return _LATENCY_S + tokens * rate.seconds / rate.tokens

    def measured(self, instance: str, place: str, tier: Tier, tokens: int, seconds: float) -> None:
        """Learn from a read that went well."""
        self._open(instance, place)
        rate = self._rates.setdefault((instance, place), {}).setdefault(tier, _Rate())
        rate.seconds = _KEPT * rate.seconds + max(0.0, seconds - _LATENCY_S)
        rate.tokens = _KEPT * rate.tokens + tokens

    def forget_rates(self, instance: str, place: str) -> None:
        """Forget what was measured on a link: it may have changed since."""
        self._rates.pop((instance, place), None)

    def close(self, instance: str, place: str, address: str) -> None:
        """Plan nothing over a link, because a read at an ``address`` has failed.

        Others read from another server of the place, if there is one.
        """
        self._open(instance, place)
        self._closed.add((instance, place))
        servers = self._servers.get(place, {})
        first = next(iter(servers), "")
        # Another instance's failure may have put another server first already.
        if len(servers) > 1 and address in servers[first]:
            servers[first] = servers.pop(first)

    def half_open(self, instance: str, place: str) -> None:
        """Let the next plan try a link."""
        self._open(instance, place)
        self._half_open.add((instance, place))

    def plan(self, instance: str, places: Iterable[str]) -> None:
        """Note that a plan of an instance reads from these places. Of a half-open link, it is the trial."""
        for place in places:
            link = (instance, place)
            if link in self._half_open:
                self._half_open.remove(link)
                self._closed.add(link)
                self.tried.add(link)

    def _open(self, instance: str, place: str) -> None:
        for links in (self._closed, self._half_open, self.tried):
            links.discard((instance, place))

    def _forget_where(self, gone: Callable[[Link], bool]) -> None:
        for links in (self._closed, self._half_open, self.tried):
            links -= {link for link in links if gone(link)}
        self._rates = {link: rates for link, rates in self._rates.items() if not gone(link)}
