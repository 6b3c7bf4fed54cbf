"""Which replicas of each application this process was told of by Serve.

A module of its own: Serve hands a router class to other processes by value, with a copy of what its module holds.
"""

from collections.abc import Collection, Iterable

_routable: dict[str, frozenset[str]] = {}


def note(app: str, replicas: Iterable[str]) -> None:
    """Take note of the replicas that Serve routes to from now on."""
    _routable[app] = frozenset(replicas)


def replicas_of(app: str) -> Collection[str]:
    """The replicas that Serve routes to now: none that drains or is gone, and none at all before a first call."""
    return _routable.get(app, frozenset())
