"""Whether a stack is whole again."""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import httpx

from loadtest.chaos.victims import Kill, Victim
from loadtest.stack_api import authorization

STEADY_LOOKS = 3
"""So many looks in a row must find all well: behind a proxy each may reach another gateway."""
_TIMEOUT_S = 15.0


class Look(NamedTuple):
    """What a stack said of itself from ``begun`` to ``ended``, on the machine's monotonic clock.

    ``instances`` are those of the generator that take requests. ``answered``: a query that was asked after all the rest
    was well has been answered; it is asked only then.
    """

    begun: float
    ended: float
    ready: bool
    degraded: bool
    instances: frozenset[str]
    answered: bool


class Watch:
    """Looks at a stack by its HTTP API. ``probe`` is the body of the query that it asks."""

    def __init__(self, url: str, instances: int, probe: dict[str, Any]) -> None:
        self._http = httpx.Client(base_url=url, headers=authorization(), timeout=_TIMEOUT_S)
        self._count = instances
        self._probe = probe

    def close(self) -> None:
        """Look no more."""
        self._http.close()

    def look(self) -> Look:
        """Look now; nothing is raised, as nobody answering is what is looked for."""
        begun = time.monotonic()
        ready = self._get("/readyz")
        stats = self._get("/v1/admin/cache/stats") if ready is not None else None
        instances = frozenset(each["instance"] for each in (stats or {}).get("instances", ()) if not each["retired"])
        degraded = bool(ready and ready.get("degraded"))
        well = ready is not None and not degraded and len(instances) == self._count
        answered = well and self._call("POST", "/query", json=self._probe) is not None
        return Look(begun, time.monotonic(), ready is not None, degraded, instances, answered)

    def under_way(self) -> tuple[int, int] | None:
        """Queries that the controller has running and waiting; None where it does not say."""
        stats = self._get("/v1/admin/cache/stats")
        return None if stats is None else (stats["running"], stats["queued"])

    def _get(self, path: str) -> dict[str, Any] | None:
        return self._call("GET", path)

    def _call(self, method: str, path: str, **options: Any) -> dict[str, Any] | None:  # noqa: ANN401 - httpx's own
        with suppress(httpx.HTTPError, ValueError):
            # A connection of its own, as each client has: one that is kept would hang on one gateway.
            response = self._http.request(method, path, headers={"Connection": "close"}, **options)
            if response.status_code == httpx.codes.OK:
                body: dict[str, Any] = response.json()
                return body
        return None


class Recovery:
    """Waits for what a kill took: for a successor of the process, readiness, all instances, and an answer.

    ``count`` processes of the victim's kind are to run, as ``alive`` says; ``before`` is a look from before the kill.
    """

    def __init__(self, kill: Kill, count: int, before: Look, alive: Callable[[Victim], Sequence[int]]) -> None:
        self.kill = kill
        self._count = count
        self._before = before
        self._alive = alive
        self._steady: list[Look] = []

    def hear(self, look: Look) -> bool:
        """Whether all is well, noted in the kill with the time of the first of the looks that say so."""
        well = look.begun > self.kill.at and look.answered and self._replaced(look)
        self._steady = [*self._steady, look] if well else []
        if len(self._steady) < STEADY_LOOKS:
            return False
        self.kill.recovered = self._steady[0].ended
        return True

    def _replaced(self, look: Look) -> bool:
        if self.kill.victim is Victim.GENERATOR and look.instances == self._before.instances:
            # The controller does not know of the loss yet.
            return False
        there = set(self._alive(self.kill.victim))
        if self.kill.victim is not Victim.REDIS_HANGS:
            there.discard(self.kill.pid)
        return len(there) >= self._count
