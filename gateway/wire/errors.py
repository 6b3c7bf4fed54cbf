"""Errors over HTTP: the statuses of error classes, and the body of every reply that is not a 2xx.

    {"error": {"message", "type", "param", "code"}}

429 means that the caller's quota is used up, 503 that the stack cannot serve now. Both have ``Retry-After``, which is
exact for a full window. A conflict, and an engine's failure at the request, have ``x-should-retry: false``, which
OpenAI's clients obey.
"""

from collections.abc import Mapping
from http import HTTPStatus
from typing import NamedTuple

import msgspec
from fastapi import HTTPException
from starlette.responses import Response

from protocol import errors
from protocol.errors import RagtreeError


class HttpError(NamedTuple):
    """An error's HTTP status and its OpenAI error type."""

    status: int
    type: str


TABLE: Mapping[type[RagtreeError], HttpError] = {
    errors.InvalidRequest: HttpError(400, "invalid_request_error"),
    errors.Unauthenticated: HttpError(401, "authentication_error"),
    errors.PermissionDenied: HttpError(403, "permission_error"),
    errors.NotFound: HttpError(404, "not_found_error"),
    errors.Conflict: HttpError(409, "conflict_error"),
    errors.PayloadTooLarge: HttpError(413, "invalid_request_error"),
    errors.UnsupportedMediaType: HttpError(415, "invalid_request_error"),
    errors.UnreadableDocument: HttpError(422, "invalid_request_error"),
    errors.RateLimited: HttpError(429, "rate_limit_error"),
    errors.Unavailable: HttpError(503, "unavailable_error"),
    errors.Overloaded: HttpError(503, "overloaded_error"),
    errors.StorageFull: HttpError(507, "storage_error"),
    errors.EngineFailed: HttpError(500, "engine_error"),
    errors.RagtreeError: HttpError(500, "internal_error"),
}
"""The entry of an error's nearest base class applies."""


class ErrorBody(msgspec.Struct, frozen=True):
    """An error as clients receive it. ``param`` names the invalid request field. ``code`` is stable."""

    message: str
    type: str
    param: str | None
    code: str


class ErrorReply(msgspec.Struct, frozen=True):
    """The body of every reply that is not a 2xx."""

    error: ErrorBody


def http_error(error: RagtreeError) -> HttpError:
    """The table's entry for the error's nearest base class."""
    return next(TABLE[kind] for kind in type(error).__mro__ if kind in TABLE)


class BodyRefused(HTTPException):
    """An error of ours about a body. While it reads one, FastAPI turns all others but this kind into a 400."""

    def __init__(self, error: RagtreeError) -> None:
        super().__init__(http_error(error).status, error.message)
        self.error = error


def error_body(error: RagtreeError) -> ErrorBody:
    """The error's body, safe to encode as JSON even if it quotes the request."""
    return ErrorBody(
        encodable(error.message), http_error(error).type, error.param and encodable(error.param), error.code
    )


def error_headers(error: RagtreeError, retry_after_s: int) -> dict[str, str]:
    """Headers that tell a client whether and when to retry: after ``retry_after_s``, unless the error has a time."""
    match error:
        case errors.Unauthenticated():
            return {"WWW-Authenticate": "Bearer"}
        case errors.Conflict() | errors.EngineFailed():
            return {"x-should-retry": "false"}
        case errors.RateLimited(retry_after_s=int() as known_s):
            return {"Retry-After": str(known_s)}
        case errors.RateLimited() | errors.Unavailable():
            return {"Retry-After": str(retry_after_s)}
        case _:
            return {}


def error_response(error: RagtreeError, retry_after_s: int) -> Response:
    """The HTTP reply for an error."""
    return shaped_response(http_error(error).status, error_body(error), error_headers(error, retry_after_s))


def shaped_response(status: int, body: ErrorBody, headers: Mapping[str, str] | None = None) -> Response:
    """An error reply with this status and body."""
    return Response(msgspec.json.encode(ErrorReply(body)), status, headers, "application/json")


def status_body(status: int, message: str | None = None) -> ErrorBody:
    """The body for an error status of the framework, such as 404 for an unknown route."""
    named = HTTPStatus(status)
    kind = next((entry.type for entry in TABLE.values() if entry.status == status), "invalid_request_error")
    return ErrorBody(encodable(message or named.phrase), kind, None, named.name.lower())


def encodable(text: str) -> str:
    """The text without lone surrogates, which JSON can escape but UTF-8 cannot encode. Replies may quote requests."""
    return text.encode("utf-8", "replace").decode()
