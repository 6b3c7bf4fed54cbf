"""The state of a stack, checked over its HTTP API."""

import time
from contextlib import suppress
from typing import Any, NamedTuple

import httpx

from loadtest.stack_api import authorization

_TIMEOUT_S = 15.0


class StackStatus(NamedTuple):
    """What a stack reported between ``begun`` and ``ended``, on the machine's monotonic clock.

    ``instances`` are the generator instances that accept requests. ``answered``: a query was answered. It is only sent
    if everything else is well.
    """

    begun: float
    ended: float
    ready: bool
    degraded: bool
    instances: frozenset[str]
    answered: bool


class StackMonitor:
    """Checks a stack over its HTTP API. ``probe`` is the body of its query."""

    def __init__(self, url: str, instances: int, probe: dict[str, Any]) -> None:
        self._http = httpx.Client(base_url=url, headers=authorization(), timeout=_TIMEOUT_S)
        self._count = instances
        self._probe = probe

    def close(self) -> None:
        """Close the connection."""
        self._http.close()

    def check(self) -> StackStatus:
        """Check the stack now. Raises nothing, because errors are part of the status."""
        begun = time.monotonic()
        ready = self._get("/readyz")
        stats = self._get("/v1/admin/cache/stats") if ready is not None else None
        instances = frozenset(each["instance"] for each in (stats or {}).get("instances", ()) if not each["retired"])
        degraded = bool(ready and ready.get("degraded"))
        well = ready is not None and not degraded and len(instances) == self._count
        answered = well and self._call("POST", "/query", json=self._probe) is not None
        return StackStatus(begun, time.monotonic(), ready is not None, degraded, instances, answered)

    def queries_under_way(self) -> tuple[int, int] | None:
        """Return how many queries the controller has running and queued, or None if it does not answer."""
        stats = self._get("/v1/admin/cache/stats")
        return None if stats is None else (stats["running"], stats["queued"])

    def _get(self, path: str) -> dict[str, Any] | None:
        return self._call("GET", path)

    def _call(self, method: str, path: str, **options: Any) -> dict[str, Any] | None:  # noqa: ANN401 - httpx's own
        with suppress(httpx.HTTPError, ValueError):
            # A new connection per request, because a kept one would always reach the same gateway.
            response = self._http.request(method, path, headers={"Connection": "close"}, **options)
            if response.status_code == httpx.codes.OK:
                body: dict[str, Any] = response.json()
                return body
        return None
