"""Upload, deletion and listing of documents."""

from contextlib import suppress
from functools import partial
from typing import Annotated, Any
from urllib.parse import quote

from fastapi import APIRouter, Depends, Header, Path, Query, Request
from msgspec import UNSET
from msgspec.structs import asdict
from pydantic import TypeAdapter
from starlette.responses import Response

from gateway.routes.bodies import JSON_LINES, JsonRoute, document_from_json, json_response, validating
from gateway.routes.dependencies import CallerDep, GatewayDep, UploadTicketDep, any_text, json_only, media_type
from gateway.stores.uploads import SeenJob
from gateway.tasks import off_loop
from gateway.wire.document_replies import (
    ChunkReply,
    CollectionList,
    Deleted,
    DocumentList,
    DocumentReply,
    GraphReply,
    JobReply,
)
from gateway.wire.openapi import errors, json_reply, reference, replies
from gateway.wire.schemas import COLLECTION, DOCUMENT_ID, AttributeMap, CollectionBody, DocumentBody
from protocol.documents import CollectionInfo, DocumentUpload
from protocol.errors import UnknownChunk, UnknownDocument, UnsupportedMediaType
from protocol.filters import Attributes
from protocol.graph import GraphRequest, Triplet

router = APIRouter(prefix="/v1", tags=["documents"], route_class=JsonRoute)

CollectionPath = Annotated[str, Path(pattern=COLLECTION)]
DocumentPath = Annotated[str, Path(pattern=DOCUMENT_ID, description="1-512 characters; slashes may be sent as %2F.")]
ChunkPath = Annotated[str, Path(pattern=DOCUMENT_ID)]
IdempotencyKey = Annotated[
    str | None,
    Header(pattern=r"^[\x21-\x7e]{1,255}$", description="The same key with the same body returns the same job."),
]
_attributes = TypeAdapter[Attributes](AttributeMap)
AttributesQuery = Annotated[
    str,
    Query(
        description="A JSON object of strings, numbers and booleans.",
        json_schema_extra={"contentMediaType": "application/json", "contentSchema": _attributes.json_schema()},
    ),
]

_DOCUMENT = "/collections/{collection}/documents/" + any_text("document_id")
_text = {"schema": {"type": "string", "minLength": 1}}
_binary = {"schema": {"type": "string", "format": "binary"}}
_office = "application/vnd.openxmlformats-officedocument."
_TEXTS = (
    "text/plain", "text/markdown", "text/html", "application/xhtml+xml", "text/csv", "text/tab-separated-values",
    "text/json", "text/x-source",
)  # fmt: skip
_BINARIES = (
    "application/pdf", "application/epub+zip", f"{_office}wordprocessingml.document",
    f"{_office}presentationml.presentation", f"{_office}spreadsheetml.sheet", "application/octet-stream",
)  # fmt: skip
_UPLOAD: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            **dict.fromkeys(_TEXTS, _text),
            **dict.fromkeys(_BINARIES, _binary),
            "application/json": {"schema": reference(DocumentBody)},
        },
    }
}
_BATCH: dict[str, Any] = {"requestBody": {"required": True, "content": {"application/x-ndjson": _text}}}
_ACCEPTED = json_reply(JobReply, "The ingestion job.", Location="URL of the job.")
_TAKES_IN: dict[str, Any] = {
    "status_code": 202,
    "response_class": Response,
    "responses": {202: _ACCEPTED, **errors(400, 401, 408, 409, 413, 415, 422, 429, 500, 503, 507)},
}


@router.put(_DOCUMENT, openapi_extra=_UPLOAD, **_TAKES_IN)
async def put_document(
    collection: CollectionPath,
    document_id: DocumentPath,
    *,
    request: Request,
    caller: CallerDep,
    gateway: GatewayDep,
    ticket: UploadTicketDep,
    idempotency_key: IdempotencyKey = None,
    filename: Annotated[str | None, Query(min_length=1, max_length=512)] = None,
    title: Annotated[str | None, Query(max_length=1024)] = None,
    attributes: AttributesQuery = "{}",
) -> Response:
    """Add a document, or replace the document with its id.

    ``filename``, ``title`` and ``attributes`` describe raw bodies. A JSON body contains them, and may have
    ``triplets``. The suffix of the file name, or else of the id, says how to read a body of
    ``application/octet-stream`` or without a content type.
    """
    body = await request.body()
    await ticket.received(len(body))
    if media_type(request) == "application/json":
        upload = await off_loop(len(body), partial(_from_json, document_id, body))
    else:
        with validating("query", "attributes"):
            parsed = _attributes.validate_json(attributes)
        upload = DocumentUpload(document_id, body, media_type(request), filename, title, parsed)
    job = await gateway.uploads.put_document(caller.tenant, collection, upload, idempotency_key)
    gateway.ingested.note(caller.tenant, job.job, document_id)
    gateway.http_metrics.uploaded("document", len(body))
    return _accepted(job)


@router.post("/collections/{collection}/documents:batch", openapi_extra=_BATCH, **_TAKES_IN)
async def put_batch(
    collection: CollectionPath,
    request: Request,
    caller: CallerDep,
    gateway: GatewayDep,
    ticket: UploadTicketDep,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Add one document per line: ``{"id", "text", "filename"?, "title"?, "attributes"?, "triplets"?}``."""
    if media_type(request) not in JSON_LINES:
        raise UnsupportedMediaType(
            f"Unsupported content type {media_type(request)!r}; send JSON lines as application/x-ndjson."
        )
    body = await request.body()
    await ticket.received(len(body), documents=await off_loop(len(body), partial(_lines, body)))
    job = await gateway.uploads.put_batch(caller.tenant, collection, body, idempotency_key)
    gateway.ingested.note(caller.tenant, job.job)
    gateway.http_metrics.uploaded("batch", len(body))
    return _accepted(job)


# Before the route of documents, whose path covers this one.
@router.get(_DOCUMENT + "/chunks/{chunk_id}", responses=replies(ChunkReply, "The chunk.", 401, 404, 422, 429, 500, 503))
async def get_chunk(
    collection: CollectionPath, document_id: DocumentPath, chunk_id: ChunkPath, caller: CallerDep, gateway: GatewayDep
) -> Response:
    """Get a chunk of a document with its text.

    A document whose own id ends in ``/chunks/`` and a name takes precedence.
    """
    with suppress(UnknownDocument):
        return await get_document(collection, f"{document_id}/chunks/{chunk_id}", caller, gateway)
    for chunk in (await gateway.parts.retriever.chunks(caller.tenant, collection, document_id)).chunks:
        if chunk.chunk_id == chunk_id:
            return json_response(ChunkReply.of(chunk, collection))
    raise UnknownChunk(f"There is no chunk {chunk_id!r} in {document_id!r}.", "chunk_id")


@router.get(_DOCUMENT, responses=replies(DocumentReply, "The document.", 401, 404, 422, 429, 500, 503))
async def get_document(
    collection: CollectionPath, document_id: DocumentPath, caller: CallerDep, gateway: GatewayDep
) -> Response:
    """Get a document with its text."""
    stored = await gateway.parts.retriever.get_document(caller.tenant, collection, document_id)
    return json_response(DocumentReply(**asdict(stored.info), text=stored.text))


@router.delete(_DOCUMENT, responses=replies(Deleted, "The document is deleted.", 401, 404, 422, 429, 500, 503))
async def delete_document(
    collection: CollectionPath, document_id: DocumentPath, caller: CallerDep, gateway: GatewayDep
) -> Response:
    """Delete a document and its KV. When the reply arrives, the KV is gone from every tier.

    After a 503, retry. A 404 also means that no KV of the document is left.
    """
    # A call to a part that is away would wait until the part is back.
    gateway.readiness.require_parts()
    await gateway.forgetting.delete_document(caller.tenant, collection, document_id)
    return json_response(Deleted(document_id=document_id))


@router.get(
    "/collections/{collection}/documents",
    responses=replies(DocumentList, "A page of documents.", 400, 401, 404, 422, 429, 500, 503),
)
async def list_documents(
    collection: CollectionPath,
    caller: CallerDep,
    gateway: GatewayDep,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
    after: Annotated[str | None, Query(description="The next_cursor of the previous page.")] = None,
) -> Response:
    """List the documents of a collection, page by page."""
    page = await gateway.parts.retriever.list_documents(caller.tenant, collection, limit, after)
    more = page.next_cursor is not None
    return json_response(DocumentList(data=page.documents, has_more=more, next_cursor=page.next_cursor))


@router.get("/collections", responses=replies(CollectionList, "The collections.", 401, 429, 500, 503))
async def list_collections(caller: CallerDep, gateway: GatewayDep) -> Response:
    """List the tenant's collections."""
    return json_response(CollectionList(data=tuple(await gateway.parts.retriever.list_collections(caller.tenant))))


@router.put(
    "/collections/{collection}",
    responses=replies(CollectionInfo, "The collection.", 400, 401, 413, 415, 422, 429, 500, 503, 507),
    dependencies=[Depends(json_only)],
)
async def put_collection(
    collection: CollectionPath, body: CollectionBody, caller: CallerDep, gateway: GatewayDep
) -> Response:
    """Create a collection, or change its settings."""
    await gateway.parts.retriever.put_collection(caller.tenant, collection, body.search)
    held = {info.name: info for info in await gateway.parts.retriever.list_collections(caller.tenant)}
    return json_response(held[collection])


@router.get("/jobs/{job_id}", responses=replies(JobReply, "The job.", 401, 404, 422, 429, 500, 503))
async def get_job(job_id: str, caller: CallerDep, gateway: GatewayDep) -> Response:
    """Get the state of an ingestion job."""
    return json_response(JobReply.of(await gateway.uploads.job(caller.tenant, job_id)))


def _accepted(seen: SeenJob) -> Response:
    return json_response(JobReply.of(seen), 202, {"Location": f"/v1/jobs/{quote(seen.job.job_id, safe='')}"})


def _lines(body: bytes) -> int:
    return body.count(b"\n") + (not body.endswith(b"\n"))


def _from_json(document_id: str, body: bytes) -> DocumentUpload:
    given = document_from_json(body)
    triplets = tuple(Triplet(triplet.head, triplet.relation, triplet.tail) for triplet in given.triplets)
    return DocumentUpload(
        document_id, given.text.encode(), "text/plain", given.filename, given.title, given.attributes, triplets or UNSET
    )


Label = Annotated[str, Query(min_length=1, max_length=512)]


@router.get(
    "/collections/{collection}/graph",
    responses=replies(GraphReply, "A part of the graph.", 401, 404, 409, 422, 429, 500, 503),
)
async def get_graph(
    collection: CollectionPath,
    caller: CallerDep,
    gateway: GatewayDep,
    label: Annotated[
        list[Label], Query(max_length=20, description="Names of entities. Without any: the most mentioned ones.")
    ] = [],  # noqa: B006  # FastAPI copies it
    max_depth: Annotated[
        int, Query(ge=0, le=5, description="How many relations away an entity may be from those named.")
    ] = 2,
    max_nodes: Annotated[int, Query(ge=1, le=1000, description="Most entities.")] = 50,
    max_relations: Annotated[int, Query(ge=0, le=2000, description="Most relations.")] = 100,
) -> Response:
    """Get the entities and relations around the named entities, or around the most mentioned ones.

    A name is found in any spelling that differs in case, accents, punctuation or a leading article.
    """
    gateway.readiness.require_retriever()
    view = await gateway.parts.retriever.view_graph(
        GraphRequest(caller.tenant, collection, tuple(label), max_depth, max_nodes, max_relations)
    )
    return json_response(GraphReply(**asdict(view), collection=collection))
