"""What surrounds every request, as plain ASGI: its id, headers of any reply, its log line and count, and defects."""

import re
import time
from collections.abc import MutableMapping
from uuid import uuid4

import structlog
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.metrics.http_metrics import HttpMetrics
from gateway.query.tracing import continued
from gateway.wire.errors import error_response
from protocol.errors import InternalError

REQUEST_ID = "X-Request-Id"
_WATCHED = frozenset({"/healthz", "/readyz", "/metrics"})
_WELL_FORMED = re.compile(r"[A-Za-z0-9._:-]{1,128}")

log = structlog.get_logger(__name__)


def said_of(scope: Scope) -> MutableMapping[str, str]:
    """Headers that the reply to a request carries besides its own, whatever the reply is."""
    said: MutableMapping[str, str] = scope.setdefault("state", {}).setdefault("headers", {})
    return said


class RequestContext:
    """Gives each request an id, echoed or made, counts it, and logs one line about it.

    No reply's type is to be guessed at.

    It also answers what no handler knows: 500 in the error shape, with the details in the log alone. Starlette's own
    answer to that would stand outside of this middleware and lack the id.
    """

    def __init__(self, app: ASGIApp, metrics: HttpMetrics, retry_after_s: int) -> None:
        self._app = app
        self._metrics = metrics
        self._retry_after_s = retry_after_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = _request_id(scope)
        traceparent = Headers(scope=scope).get("traceparent")
        started_at = time.monotonic()
        status: int | None = None
        streams = False

        async def identified(message: Message) -> None:
            nonlocal status, streams
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                headers.update(said_of(scope))
                headers[REQUEST_ID] = request_id
                # A reply may quote what its request said: it is never to be taken for a page.
                headers["X-Content-Type-Options"] = "nosniff"
                if headers.get("content-type", "").startswith("text/event-stream"):
                    streams = True
                    self._metrics.streams.inc()
            await send(message)

        with structlog.contextvars.bound_contextvars(request_id=request_id), continued(traceparent):
            try:
                await self._app(scope, receive, identified)
            except Exception:
                log.exception("defect", method=scope["method"], path=scope["path"])
                if status is not None:
                    # The headers are out; only a cut connection can still tell the client.
                    raise
                defect = InternalError(f"Something went wrong inside RAGTree; its log says what, under {request_id}.")
                await error_response(defect, self._retry_after_s)(scope, receive, identified)
            finally:
                if streams:
                    self._metrics.streams.dec()
                self._metrics.served(getattr(scope.get("route"), "path", None), status)
                duration_ms = round((time.monotonic() - started_at) * 1000, 1)
                # Whoever watches the stack asks every few seconds; nobody wants to read that.
                logged = log.debug if scope["path"] in _WATCHED and status == 200 else log.info
                logged("request", method=scope["method"], path=scope["path"], status=status, duration_ms=duration_ms)


def _request_id(scope: Scope) -> str:
    given = Headers(scope=scope).get(REQUEST_ID, "")
    return given if _WELL_FORMED.fullmatch(given) else uuid4().hex
