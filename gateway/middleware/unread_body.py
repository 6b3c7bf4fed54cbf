"""The end of a connection whose request was answered before its body was read."""

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send


class UnreadBody:
    """Closes the connection of a request that is answered before its body has arrived.

    Otherwise the server would go on to receive the body, however long, to find the next request behind it.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http" or not _has_body(scope):
            await self._app(scope, receive, send)
            return
        arrived = False

        async def noted() -> Message:
            nonlocal arrived
            message = await receive()
            arrived = not message.get("more_body", False)
            return message

        async def closing(message: Message) -> None:
            if message["type"] == "http.response.start" and not arrived:
                MutableHeaders(scope=message)["Connection"] = "close"
            await send(message)

        await self._app(scope, noted, closing)


def _has_body(scope: Scope) -> bool:
    headers = Headers(scope=scope)
    return headers.get("content-length", "0") != "0" or "transfer-encoding" in headers
