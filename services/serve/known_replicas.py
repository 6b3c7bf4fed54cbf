"""The replicas of each application, as Ray Serve last reported them to this process.

This is a separate module because Serve copies a router class to other processes by value, together with the globals
of its module.
"""

from collections.abc import Collection, Iterable

_routable: dict[str, frozenset[str]] = {}


def set_replicas(app: str, replicas: Iterable[str]) -> None:
    """Replace the set of replicas that Serve routes to."""
    _routable[app] = frozenset(replicas)


def replicas_of(app: str) -> Collection[str]:
    """Return the replicas that Serve routes to: none that drains or is gone, and none before the first call."""
    return _routable.get(app, frozenset())
