"""Protection against requests that pages of other origins make a browser send."""

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.wire.errors import error_response
from protocol.errors import PermissionDenied

_HARMLESS = {"GET", "HEAD", "OPTIONS"}
_FOREIGN = {"cross-site", "same-site"}


class CrossSite:
    """Refuses requests with side effects from pages of another origin, by the ``Sec-Fetch-Site`` header of browsers.

    Only a gateway without keys needs it: such a gateway trusts every request, and any page that its user opens can make
    the browser send one. Such a page cannot read replies, because the gateway allows no other origin (CORS).
    """

    def __init__(self, app: ASGIApp, retry_after_s: int) -> None:
        self._app = app
        self._retry_after_s = retry_after_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        foreign = scope["type"] == "http" and Headers(scope=scope).get("sec-fetch-site") in _FOREIGN
        if foreign and scope["method"] not in _HARMLESS:
            error = PermissionDenied("Pages of another origin may not send this request.")
            await error_response(error, self._retry_after_s)(scope, receive, send)
            return
        await self._app(scope, receive, send)
