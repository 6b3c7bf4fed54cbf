"""The request's id, common reply headers, log line and metrics, and the reply to unhandled errors."""

import re
import time
from collections.abc import MutableMapping
from uuid import uuid4

import structlog
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.metrics.gateway_metrics import HttpMetrics
from gateway.query.tracing import continued
from gateway.wire.errors import error_response
from protocol.errors import InternalError

REQUEST_ID = "X-Request-Id"
_WATCHED = frozenset({"/healthz", "/readyz", "/metrics"})
_WELL_FORMED = re.compile(r"[A-Za-z0-9._:-]{1,128}")

log = structlog.get_logger(__name__)


def extra_headers(scope: Scope) -> MutableMapping[str, str]:
    """Headers to add to the reply to this request, for any reply."""
    headers: MutableMapping[str, str] = scope.setdefault("state", {}).setdefault("headers", {})
    return headers


class RequestContext:
    """Gives each request an id, the client's own or a new one, counts the request, and logs one line about it.

    Also replies to unhandled errors with a 500 in the error shape, and logs the details. Starlette's own reply would
    be made outside this middleware, without the id. Every reply forbids browsers to guess its type.
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
                headers.update(extra_headers(scope))
                headers[REQUEST_ID] = request_id
                # A reply may quote its request, so a browser must not interpret it as a page.
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
                    # The headers are sent; only closing the connection can still tell the client.
                    raise
                defect = InternalError(f"RAGTree had an internal error; its log has the details under {request_id}.")
                await error_response(defect, self._retry_after_s)(scope, receive, identified)
            finally:
                if streams:
                    self._metrics.streams.dec()
                self._metrics.served(getattr(scope.get("route"), "path_format", None), status)
                duration_ms = round((time.monotonic() - started_at) * 1000, 1)
                # Monitoring requests these paths every few seconds.
                logged = log.debug if scope["path"] in _WATCHED and status == 200 else log.info
                logged("request", method=scope["method"], path=scope["path"], status=status, duration_ms=duration_ms)


def _request_id(scope: Scope) -> str:
    given = Headers(scope=scope).get(REQUEST_ID, "")
    return given if _WELL_FORMED.fullmatch(given) else uuid4().hex
