"""Additions to FastAPI's OpenAPI document: the schemas of replies, which are msgspec structs."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from fastapi import FastAPI
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from gateway.wire.errors import ErrorReply

API_KEY, ADMIN_KEY = "api_key", "admin_key"
"""Names of the two security schemes."""

_REFERENCE = "#/components/schemas/{name}"
_described: dict[str, type] = {}
"""What ``reference`` was asked for, by name: replies, and bodies that a route reads itself."""

Responses = dict[int | str, dict[str, Any]]


def json_reply(kind: type, description: str, **headers: str) -> dict[str, Any]:
    """Describe a JSON reply. ``headers`` maps names to descriptions."""
    content = {"application/json": {"schema": reference(kind)}}
    described: dict[str, Any] = {"description": description, "content": content}
    if headers:
        described["headers"] = {
            name.replace("_", "-"): {"description": text, "schema": {"type": "string"}}
            for name, text in headers.items()
        }
    return described


def answer(kind: type, description: str, *events: type) -> dict[str, Any]:
    """Describe a JSON reply that may be streamed instead: as named ``events``, or as unnamed ones if none are given."""
    described = json_reply(kind, description)
    described["content"]["text/event-stream"] = _event_stream(events)
    return described


def _event_stream(kinds: Sequence[type]) -> dict[str, Any]:
    data: dict[str, Any] = {"type": "string"}
    if kinds:
        data |= {
            "contentMediaType": "application/json",
            "contentSchema": {"oneOf": [reference(kind) for kind in kinds]},
        }
    fields = {"data": data, "event": {"type": "string"}} if kinds else {"data": data}
    event = {"type": "object", "properties": fields, "required": [*fields]}
    return {"itemSchema": event}


def reference(kind: type) -> dict[str, str]:
    """Reference to the schema of a reply or a body, which the document then has."""
    _described[kind.__name__] = kind
    return {"$ref": _REFERENCE.format(name=kind.__name__)}


def errors(*statuses: int) -> Responses:
    """Describe a route's error replies."""
    return {status: json_reply(ErrorReply, _MEANING[status]) for status in statuses}


def replies(kind: type, description: str, *statuses: int) -> Responses:
    """Describe a route's JSON reply, and its error replies with these statuses."""
    return {200: json_reply(kind, description), **errors(*statuses)}


_MEANING = {
    400: "The request is invalid and never succeeds.",
    401: "The API key is missing or unknown.",
    403: "The key is not an administrator's.",
    404: "The requested object does not exist.",
    408: "The client took too long to send the body.",
    409: "The request conflicts with the state of the stack.",
    413: "The body is too large.",
    415: "The content type is not supported.",
    422: "A field is invalid, or a document cannot be read.",
    429: "The key's quota is used up. Retry-After says when to retry.",
    500: "Internal error.",
    503: "Overloaded or not ready. Retry-After says when to retry.",
    507: "The disk is full. Nothing was stored.",
}


def describe(app: FastAPI, needed: Mapping[str, bool]) -> None:
    """Add the schemas of replies to the app's OpenAPI document, and remove security schemes that are not in use.

    ``needed`` maps each security scheme to whether requests need its key.
    """
    generate = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            document = generate()
            schemas = document.setdefault("components", {}).setdefault("schemas", {})
            for unused in ("HTTPValidationError", "ValidationError"):
                schemas.pop(unused, None)
            schemas.update(_referenced_schemas())
            _remove_schemes(document, {scheme for scheme, in_use in needed.items() if not in_use})
        assert app.openapi_schema is not None
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]


def _referenced_schemas() -> dict[str, Any]:
    bodies = [kind for kind in _described.values() if issubclass(kind, BaseModel)]
    replies = [kind for kind in _described.values() if kind not in bodies]
    schemas: dict[str, Any] = msgspec.json.schema_components(replies, ref_template=_REFERENCE)[1]
    _, described = models_json_schema(
        [(body, "validation") for body in bodies], ref_template=_REFERENCE.format(name="{model}")
    )
    schemas.update(described["$defs"])
    return schemas


def _remove_schemes(document: dict[str, Any], schemes: set[str]) -> None:
    """Remove these security schemes, and the replies 401 and 403 of their operations."""
    for scheme in schemes:
        del document["components"]["securitySchemes"][scheme]
    for path in document["paths"].values():
        for operation in path.values():
            if any(scheme in required for required in operation.get("security", ()) for scheme in schemes):
                del operation["security"]
                operation["responses"].pop("401", None)
                operation["responses"].pop("403", None)
