"""Exception handlers: every error raised in a route becomes a reply in the error shape."""

from collections.abc import Sequence
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Match

from gateway.metrics.gateway_metrics import GatewayMetrics
from gateway.wire.errors import (
    BodyRefused,
    ErrorBody,
    encodable,
    error_response,
    http_error,
    shaped_response,
    status_body,
)
from protocol.errors import RagtreeError

CLIENT_GONE = 499
"""Status in the log for a client that disconnected. It is never sent."""


def install_handlers(app: FastAPI, metrics: GatewayMetrics, retry_after_s: int) -> None:
    """Install the handlers. Unhandled errors are the middleware's task."""

    def ours(_request: Request, error: Exception) -> Response:
        assert isinstance(error, RagtreeError)
        if http_error(error).status < 500 or http_error(error).status == 503:
            metrics.rejected(error.code)
        return error_response(error, retry_after_s)

    def invalid(_request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        metrics.rejected("validation")
        return validation_response(error.errors())

    def http(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        if isinstance(error, BodyRefused):
            return ours(request, error.error)
        metrics.rejected("http_error")
        headers = {"Allow": _allowed(request)} if error.status_code == 405 else error.headers
        return shaped_response(error.status_code, status_body(error.status_code, str(error.detail)), headers)

    def gone(_request: Request, _error: Exception) -> Response:
        return Response(status_code=CLIENT_GONE)

    app.add_exception_handler(RagtreeError, ours)
    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(HTTPException, http)
    app.add_exception_handler(ClientDisconnect, gone)


def _allowed(request: Request) -> str:
    """The methods of all routes at this path. The framework reports only those of the first route."""
    app: FastAPI = request.app
    at_path = (route for route in app.routes if route.matches(request.scope)[0] is not Match.NONE)
    return ", ".join(sorted({method for route in at_path for method in getattr(route, "methods", None) or ()}))


def validation_response(problems: Sequence[Any]) -> Response:
    """The reply to an invalid request: 400 if the body is not JSON, else 422."""
    first = problems[0]
    if first["type"] == "json_invalid" and first["loc"][0] == "body":
        message = f"The body is not valid JSON: {first.get('ctx', {}).get('error', 'it does not parse')}"
        return shaped_response(400, ErrorBody(message, "invalid_request_error", None, "invalid_json"))
    where, *path = (str(step) for step in first["loc"])
    param = ".".join(path) or where
    body = status_body(422, f"{param}: {first['msg']}")
    named = ErrorBody(body.message, body.type, encodable(param), "invalid_value")
    return shaped_response(422, named)
