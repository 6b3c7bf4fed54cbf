"""What /docs says beyond what FastAPI can read off the routes: the shapes of replies, which are msgspec structs."""

from typing import Any

import msgspec
from fastapi import FastAPI

from gateway import events, reply
from gateway.chat import ChatCompletion, Model, ModelList
from gateway.documents import CollectionList, Deleted, DocumentList, DocumentReply, JobReply
from gateway.errors import ErrorReply
from gateway.health import Health

_REFERENCE = "#/components/schemas/{name}"
_TYPES = (
    ErrorReply,
    reply.Reply,
    events.QueryCreated,
    events.RetrievalStage,
    events.RetrievalCompleted,
    events.CacheResolved,
    events.OutputTextDelta,
    events.AnnotationAdded,
    events.QueryCompleted,
    events.QueryIncomplete,
    events.QueryFailed,
    ChatCompletion,
    Model,
    ModelList,
    CollectionList,
    Deleted,
    DocumentList,
    DocumentReply,
    JobReply,
    Health,
)

Responses = dict[int | str, dict[str, Any]]


def json_reply(kind: type, description: str, **headers: str) -> dict[str, Any]:
    """The description of a JSON reply, its headers by name with a word on each."""
    schema = {"$ref": _REFERENCE.format(name=kind.__name__)}
    described: dict[str, Any] = {"description": description, "content": {"application/json": {"schema": schema}}}
    if headers:
        described["headers"] = {
            name.replace("_", "-"): {"description": text, "schema": {"type": "string"}}
            for name, text in headers.items()
        }
    return described


def errors(*statuses: int) -> Responses:
    """The descriptions of the error replies that a route may give besides the ones that every route may."""
    return {status: json_reply(ErrorReply, _MEANING[status]) for status in statuses}


_MEANING = {
    400: "The request can never succeed as it stands.",
    401: "No API key, or one that nobody issued.",
    404: "What the request names does not exist.",
    409: "The request contradicts the state of the stack.",
    413: "The body is too large.",
    415: "No loader reads this content type.",
    422: "A field does not fit, or a document cannot be read.",
    500: "A defect of RAGTree.",
    503: "Overloaded or not ready; Retry-After says when to try again.",
    507: "The disk is full; nothing was kept.",
}


def describe(app: FastAPI, keyed: bool) -> None:
    """Make the app's OpenAPI document name the shapes of its replies, and ask for a key only where one is needed."""
    generate = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            document = generate()
            schemas = document.setdefault("components", {}).setdefault("schemas", {})
            for unused in ("HTTPValidationError", "ValidationError"):
                schemas.pop(unused, None)
            schemas.update(msgspec.json.schema_components(_TYPES, ref_template=_REFERENCE)[1])
            if not keyed:
                _open(document)
        assert app.openapi_schema is not None
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]


def _open(document: dict[str, Any]) -> None:
    del document["components"]["securitySchemes"]
    for path in document["paths"].values():
        for operation in path.values():
            operation.pop("security", None)
            operation["responses"].pop("401", None)
