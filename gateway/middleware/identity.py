"""Who sends a request: known before anything of it is counted or read."""

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.limits.auth import Caller, Keyring
from gateway.metrics.gateway_metrics import GatewayMetrics
from gateway.wire.errors import error_response
from protocol.errors import PermissionDenied, Unauthenticated

_ADMIN = "/v1/admin/"
_PUBLIC = {"/", "/healthz", "/readyz", "/metrics", "/docs", "/openapi.json"}
_PAGE = "/page/"


def caller_of(scope: Scope) -> Caller | None:
    """The caller of a request; None for a stranger, who has come no further than the paths without a key."""
    caller: Caller | None = scope.get("state", {}).get("caller")
    return caller


class Identity:
    """Puts the caller of a request's key into its scope, where ``caller_of`` finds it.

    Strangers, who have no key or an unknown one, may read health checks, metrics, the page and the API's description.
    Anything else is refused without reading a byte of its body, and costs no call of another part or of Redis.
    """

    def __init__(self, app: ASGIApp, keyring: Keyring, metrics: GatewayMetrics, retry_after_s: int) -> None:
        self._app = app
        self._keyring = keyring
        self._metrics = metrics
        self._retry_after_s = retry_after_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            scope.setdefault("state", {})["caller"] = self._keyring.caller(Headers(scope=scope))
        except Unauthenticated as error:
            if not _public(scope):
                await self._refuse(error, scope, receive, send)
                return
        await self._app(scope, receive, send)

    async def _refuse(self, error: Unauthenticated, scope: Scope, receive: Receive, send: Send) -> None:
        told: Unauthenticated | PermissionDenied = error
        if scope["path"].startswith(_ADMIN) and not self._keyring.has_administrators:
            # No key would help.
            told = self._keyring.no_administrators()
        self._metrics.rejected(told.code)
        response = error_response(told, self._retry_after_s)
        # Later requests on this connection are a stranger's, too.
        response.headers["Connection"] = "close"
        await response(scope, receive, send)


def _public(scope: Scope) -> bool:
    path: str = scope["path"]
    return scope["method"] in ("GET", "HEAD") and (path in _PUBLIC or path.startswith(_PAGE))


_HARMLESS = {"GET", "HEAD", "OPTIONS"}
_FOREIGN = {"cross-site", "same-site"}


class CrossSite:
    """Refuses requests with side effects from pages of another origin, by the ``Sec-Fetch-Site`` header of browsers.

    Only a gateway without keys needs it: that gateway trusts every request, and any page that its user opens can make
    the browser send one. That page cannot read replies, because the gateway allows no other origin (CORS).
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
