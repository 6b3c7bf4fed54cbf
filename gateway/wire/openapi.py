"""Additions to FastAPI's OpenAPI document: the schemas of replies, which are msgspec structs."""

from collections.abc import Mapping
from typing import Any

import msgspec
from fastapi import FastAPI
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from gateway.wire import events, reply
from gateway.wire.cache_replies import CacheStats, CacheTree, Dropped, Pinned, PrecomputeReply, WarmUpReply
from gateway.wire.document_replies import (
    ChunkReply,
    CollectionList,
    Deleted,
    DocumentList,
    DocumentReply,
    GraphReply,
    JobReply,
)
from gateway.wire.errors import ErrorReply
from gateway.wire.openai.chat import ChatCompletion
from gateway.wire.openai.completions import Completion
from gateway.wire.openai.embeddings import EmbeddingList
from gateway.wire.openai.models import Model, ModelList
from gateway.wire.openai.response_events import RESPONSE_EVENTS
from gateway.wire.openai.response_object import ResponseObject
from gateway.wire.schemas import DocumentBody, WarmBody
from gateway.wire.search import SearchReply
from gateway.wire.status_replies import ActivityReport, Health, Ready

API_KEY, ADMIN_KEY = "api_key", "admin_key"
"""Names of the two security schemes."""

QUERY_EVENTS: tuple[type, ...] = (
    events.QueryCreated,
    events.RetrievalStage,
    events.RetrievalCompleted,
    events.CacheResolved,
    events.OutputTextDelta,
    events.AnnotationAdded,
    events.QueryCompleted,
    events.QueryIncomplete,
    events.QueryFailed,
)

_REFERENCE = "#/components/schemas/{name}"
_TYPES = (
    ErrorReply,
    reply.Reply,
    SearchReply,
    *QUERY_EVENTS,
    ChatCompletion,
    Completion,
    ResponseObject,
    *RESPONSE_EVENTS,
    EmbeddingList,
    Model,
    ModelList,
    ChunkReply,
    CollectionList,
    Deleted,
    DocumentList,
    DocumentReply,
    GraphReply,
    JobReply,
    CacheStats,
    CacheTree,
    ActivityReport,
    Dropped,
    Pinned,
    PrecomputeReply,
    WarmUpReply,
    Health,
    Ready,
)
_BODIES: tuple[type[BaseModel], ...] = (DocumentBody, WarmBody)
"""Bodies that a route reads itself, so FastAPI does not know their schemas."""

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


def event_stream(*kinds: type) -> dict[str, Any]:
    """Describe server-sent events: named, with JSON data of these kinds, or unnamed if there are no kinds."""
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
    """Reference to the schema of a reply or a body."""
    return {"$ref": _REFERENCE.format(name=kind.__name__)}


def errors(*statuses: int) -> Responses:
    """Describe a route's error replies."""
    return {status: json_reply(ErrorReply, _MEANING[status]) for status in statuses}


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

    ``needed`` maps each security scheme to whether requests need such a key.
    """
    generate = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            document = generate()
            schemas = document.setdefault("components", {}).setdefault("schemas", {})
            for unused in ("HTTPValidationError", "ValidationError"):
                schemas.pop(unused, None)
            schemas.update(msgspec.json.schema_components(_TYPES, ref_template=_REFERENCE)[1])
            schemas.update(_body_schemas())
            _remove_schemes(document, {scheme for scheme, in_use in needed.items() if not in_use})
        assert app.openapi_schema is not None
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]


def _body_schemas() -> dict[str, Any]:
    _, described = models_json_schema(
        [(body, "validation") for body in _BODIES], ref_template=_REFERENCE.format(name="{model}")
    )
    schemas: dict[str, Any] = described["$defs"]
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
