"""Requests that a page of some other site has a browser send."""

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.wire.errors import error_response
from protocol.errors import PermissionDenied

_HARMLESS = {"GET", "HEAD", "OPTIONS"}
_FOREIGN = {"cross-site", "same-site"}


class CrossSite:
    """Refuses what would change something and comes from a page of another origin, as browsers say of every request.

    It stands before a gateway without keys: that trusts whoever reaches it, and any page that its user opens can have
    the browser reach it. What the gateway answers, such a page cannot read: no other origin is ever allowed to (CORS).
    """

    def __init__(self, app: ASGIApp, retry_after_s: int) -> None:
        self._app = app
        self._retry_after_s = retry_after_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        foreign = scope["type"] == "http" and Headers(scope=scope).get("sec-fetch-site") in _FOREIGN
        if foreign and scope["method"] not in _HARMLESS:
            error = PermissionDenied("A page of another origin may not send this.")
            await error_response(error, self._retry_after_s)(scope, receive, send)
            return
        await self._app(scope, receive, send)
