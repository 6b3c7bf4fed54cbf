"""What /docs says beyond what FastAPI can read off the routes: the shapes of replies, which are msgspec structs."""

from collections.abc import Mapping
from typing import Any

import msgspec
from fastapi import FastAPI
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from gateway.query.activity import ActivityReport
from gateway.wire import events, reply
from gateway.wire.cache_replies import CacheStats, CacheTree, Dropped, Pinned, WarmUpReply
from gateway.wire.chat import ChatCompletion, Model, ModelList
from gateway.wire.document_replies import CollectionList, Deleted, DocumentList, DocumentReply, JobReply
from gateway.wire.errors import ErrorReply
from gateway.wire.health_replies import Health, Ready
from gateway.wire.schemas import WarmBody

API_KEY, ADMIN_KEY = "api_key", "admin_key"
"""The names of the two kinds of keys that a route may ask for."""

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
    *QUERY_EVENTS,
    ChatCompletion,
    Model,
    ModelList,
    CollectionList,
    Deleted,
    DocumentList,
    DocumentReply,
    JobReply,
    CacheStats,
    CacheTree,
    ActivityReport,
    Dropped,
    Pinned,
    WarmUpReply,
    Health,
    Ready,
)
_BODIES: tuple[type[BaseModel], ...] = (WarmBody,)
"""The bodies that a route reads itself, so that FastAPI does not know them."""

Responses = dict[int | str, dict[str, Any]]


def json_reply(kind: type, description: str, **headers: str) -> dict[str, Any]:
    """The description of a JSON reply, its headers by name with a word on each."""
    content = {"application/json": {"schema": reference(kind)}}
    described: dict[str, Any] = {"description": description, "content": content}
    if headers:
        described["headers"] = {
            name.replace("_", "-"): {"description": text, "schema": {"type": "string"}}
            for name, text in headers.items()
        }
    return described


def event_stream(*kinds: type) -> dict[str, Any]:
    """The description of server-sent events: named ones whose data is JSON of these kinds, or unnamed ones of none."""
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
    """The place in the document where a reply or a body is described."""
    return {"$ref": _REFERENCE.format(name=kind.__name__)}


def errors(*statuses: int) -> Responses:
    """The descriptions of the error replies that a route may give besides the ones that every route may."""
    return {status: json_reply(ErrorReply, _MEANING[status]) for status in statuses}


_MEANING = {
    400: "The request can never succeed as it stands.",
    401: "No API key, or one that nobody issued.",
    403: "The key is not an administrator's.",
    404: "What the request names does not exist.",
    408: "The body did not come in time.",
    409: "The request contradicts the state of the stack.",
    413: "The body is too large.",
    415: "No loader reads this content type.",
    422: "A field does not fit, or a document cannot be read.",
    429: "The key's own quota is used up; Retry-After says when it has room again.",
    500: "A defect of RAGTree.",
    503: "Overloaded or not ready; Retry-After says when to try again.",
    507: "The disk is full; nothing was kept.",
}


def describe(app: FastAPI, asked_for: Mapping[str, bool]) -> None:
    """Make the app's OpenAPI document name the shapes of its replies, and ask for a key only where one is needed.

    ``asked_for`` says of each kind of key whether requests need it.
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
            _open(document, {kind for kind, asked in asked_for.items() if not asked})
        assert app.openapi_schema is not None
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]


def _body_schemas() -> dict[str, Any]:
    _, described = models_json_schema(
        [(body, "validation") for body in _BODIES], ref_template=_REFERENCE.format(name="{model}")
    )
    schemas: dict[str, Any] = described["$defs"]
    return schemas


def _open(document: dict[str, Any], kinds: set[str]) -> None:
    """Take out that keys of these kinds are asked for."""
    for kind in kinds:
        del document["components"]["securitySchemes"][kind]
    for path in document["paths"].values():
        for operation in path.values():
            if any(kind in needed for needed in operation.get("security", ()) for kind in kinds):
                del operation["security"]
                operation["responses"].pop("401", None)
                operation["responses"].pop("403", None)
