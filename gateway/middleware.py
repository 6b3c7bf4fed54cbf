"""What surrounds every request, as plain ASGI: its id, its line in the log, and the answer to a defect."""

import re
import time
from uuid import uuid4

import structlog
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.errors import error_response
from protocol.errors import InternalError

REQUEST_ID = "X-Request-Id"
_WELL_FORMED = re.compile(r"[A-Za-z0-9._:-]{1,128}")

log = structlog.get_logger(__name__)


class RequestContext:
    """Gives each request an id, echoed or made, and logs one line about it. No reply's type is to be guessed at.

    It also answers what no handler knows: 500 in the error shape, with the details in the log alone. Starlette's own
    answer to that would stand outside of this middleware and lack the id.
    """

    def __init__(self, app: ASGIApp, retry_after_s: int) -> None:
        self._app = app
        self._retry_after_s = retry_after_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = _request_id(scope)
        started_at = time.monotonic()
        status: int | None = None

        async def identified(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                headers[REQUEST_ID] = request_id
                # A reply may quote what its request said: it is never to be taken for a page.
                headers["X-Content-Type-Options"] = "nosniff"
            await send(message)

        with structlog.contextvars.bound_contextvars(request_id=request_id):
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
                duration_ms = round((time.monotonic() - started_at) * 1000, 1)
                log.info("request", method=scope["method"], path=scope["path"], status=status, duration_ms=duration_ms)


def _request_id(scope: Scope) -> str:
    given = Headers(scope=scope).get(REQUEST_ID, "")
    return given if _WELL_FORMED.fullmatch(given) else uuid4().hex
