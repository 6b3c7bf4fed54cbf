"""Administration of the KV cache: statistics, warm-up, precomputation, pins and deletion.

``tenant`` names the documents' owner. By default, it is the administrator's own tenant.
"""

import asyncio
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request
from starlette.responses import Response

from gateway.background.pinning import pin_document
from gateway.limits.auth import namespace_of
from gateway.metrics.activity import ActivityReport
from gateway.routes.bodies import JSON_LINES, JsonRoute, json_response, require_small, validating
from gateway.routes.dependencies import AdminDep, GatewayDep, any_text, json_only, media_type
from gateway.routes.documents import DocumentPath
from gateway.wire.cache_replies import CacheStats, CacheTree, Dropped, Pinned, PrecomputeReply, WarmUpReply, token_bytes
from gateway.wire.openapi import errors, json_reply, reference, replies
from gateway.wire.schemas import COLLECTION, PinBody, PrecomputeBody, TenantName, WarmBody, WarmQuery
from protocol.cache import DocumentDeletion
from protocol.documents import DEFAULT_COLLECTION
from protocol.errors import PayloadTooLarge, UnsupportedMediaType

router = APIRouter(prefix="/v1/admin/cache", tags=["admin"], route_class=JsonRoute)

DEEPEST, MOST_NODES = 128, 10_000
MOST_WARM_QUERIES = 200_000

TenantQuery = Annotated[TenantName | None, Query(description="Owner; by default the administrator's tenant.")]
_WARM: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {"schema": reference(WarmBody)},
            "application/x-ndjson": {"schema": {"type": "string", "minLength": 1}},
        },
    }
}


@router.get("/stats", responses=replies(CacheStats, "The cache's statistics.", 401, 403, 500, 503))
async def cache_stats(_administrator: AdminDep, gateway: GatewayDep) -> Response:
    """Get the usage of the cache's tiers, and the controller's load."""
    gateway.readiness.require_parts()
    stats = await gateway.parts.controller.stats()
    return json_response(CacheStats.of(stats, token_bytes(gateway.readiness)))


@router.get("/tree", responses=replies(CacheTree, "The tree.", 401, 403, 422, 500, 503))
async def cache_tree(
    _administrator: AdminDep,
    gateway: GatewayDep,
    depth: Annotated[int, Query(ge=0, le=DEEPEST, description="Depth of the view, in documents.")] = 2,
    limit: Annotated[int, Query(ge=0, le=MOST_NODES, description="Maximum number of nodes.")] = 1000,
) -> Response:
    """Get the knowledge tree by namespace, most used documents first."""
    gateway.readiness.require_parts()
    view = await gateway.parts.controller.tree(depth, limit)
    documents = gateway.recent_documents.names_in(view)
    return json_response(CacheTree.of(view, documents, token_bytes(gateway.readiness)))


@router.get("/activity", responses=replies(ActivityReport, "The last minutes.", 401, 403, 500))
async def activity(_administrator: AdminDep, gateway: GatewayDep) -> Response:
    """Get this gateway's last minutes: queries, times to first token, cached tokens and refusals.

    Each replica of the gateway reports its own.
    """
    return json_response(gateway.metrics.activity.report())


@router.post(
    "/warm",
    status_code=202,
    response_class=Response,
    openapi_extra=_WARM,
    responses={
        202: json_reply(WarmUpReply, "The warm-up job.", Location="URL of the job."),
        **errors(400, 401, 403, 409, 413, 415, 422, 500),
    },
)
async def warm_cache(request: Request, administrator: AdminDep, gateway: GatewayDep) -> Response:
    """Bring the documents of past queries into the cache, most frequent sequences of documents first.

    The warm-up uses idle capacity only, and queries interrupt it. Queries may also be sent as JSON lines, each an
    object like those of ``queries``, or a string.
    """
    kind = media_type(request)
    if kind not in ("application/json", *JSON_LINES):
        raise UnsupportedMediaType(
            f"Unsupported content type {kind!r}; send application/json, or JSON lines as application/x-ndjson."
        )
    content = await request.body()
    read = _warm_body if kind == "application/json" else _warm_lines
    # The body's objects are also freed there: that of 20,000 queries takes more than the loop's 5 ms.
    asked = await asyncio.to_thread(lambda: gateway.filling.asked_for(read(content), administrator.tenant))
    job = gateway.filling.warm_up(asked)
    return json_response(WarmUpReply.of(job), 202, {"Location": f"/v1/admin/cache/warm/{job.job_id}"})


@router.get("/warm/{job_id}", responses=replies(WarmUpReply, "The job.", 401, 403, 404, 422, 500))
async def get_warm_up(job_id: str, _administrator: AdminDep, gateway: GatewayDep) -> Response:
    """Get the progress of the last warm-up. Earlier ones are not kept."""
    return json_response(WarmUpReply.of(gateway.filling.warm_ups.get(job_id)))


@router.post(
    "/precompute",
    status_code=202,
    response_class=Response,
    responses={
        202: json_reply(PrecomputeReply, "The precomputation.", Location="URL of the job."),
        **errors(400, 401, 403, 409, 413, 415, 422, 500),
    },
    dependencies=[Depends(json_only)],
)
async def precompute(body: PrecomputeBody, administrator: AdminDep, gateway: GatewayDep) -> Response:
    """Compute the KV of documents ahead of time, on idle capacity and as far as the tiers have room.

    First, with ``top``, that number of the most frequent sequences of documents in the query log. Then every chunk of
    every document. Cached chunks are not computed again, so a new precomputation continues one that has ended early.
    """
    job = gateway.filling.precompute(body, administrator.tenant)
    return json_response(PrecomputeReply.of(job), 202, {"Location": f"/v1/admin/cache/precompute/{job.job_id}"})


@router.get("/precompute/{job_id}", responses=replies(PrecomputeReply, "The job.", 401, 403, 404, 422, 500))
async def get_precomputation(job_id: str, _administrator: AdminDep, gateway: GatewayDep) -> Response:
    """Get the progress of the last precomputation. Earlier ones are not kept."""
    return json_response(PrecomputeReply.of(gateway.filling.precomputations.get(job_id)))


@router.delete("/precompute/{job_id}", responses=replies(PrecomputeReply, "The job.", 401, 403, 404, 422, 500))
async def cancel_precomputation(job_id: str, _administrator: AdminDep, gateway: GatewayDep) -> Response:
    """Cancel the last precomputation. Its results stay. A job that has ended stays as it is."""
    return json_response(PrecomputeReply.of(await gateway.filling.precomputations.cancel(job_id)))


@router.post(
    "/pin",
    responses=replies(Pinned, "The pinned chunks.", 400, 401, 403, 404, 409, 413, 415, 422, 500, 503),
    dependencies=[Depends(json_only)],
)
async def pin(body: PinBody, administrator: AdminDep, gateway: GatewayDep) -> Response:
    """Pin a document's KV where it directly follows the system prompt, or unpin it with ``pinned: false``.

    A 404 with the code `unknown_node` means that none of its chunks is cached there: warm the document up first.
    """
    gateway.readiness.require_parts()
    tenant = body.tenant or administrator.tenant
    chunks = (
        await gateway.parts.retriever.chunks(tenant, body.collection or DEFAULT_COLLECTION, body.document_id)
    ).chunks
    held = await pin_document(gateway.parts.controller, gateway.parts.layout, namespace_of(tenant), chunks, body.pinned)
    receipt = Pinned(document_id=body.document_id, pinned=body.pinned, chunks=len(chunks), held=held)
    return json_response(receipt)


@router.delete(
    "/documents/" + any_text("document_id"),
    responses=replies(Dropped, "The KV is dropped.", 401, 403, 404, 422, 500, 503),
)
async def drop_document(
    document_id: DocumentPath,
    administrator: AdminDep,
    gateway: GatewayDep,
    collection: Annotated[str, Query(pattern=COLLECTION)] = DEFAULT_COLLECTION,
    tenant: TenantQuery = None,
) -> Response:
    """Drop a document's KV from every tier. The document stays; the next query that finds it computes its KV again."""
    gateway.readiness.require_parts()
    owner = tenant or administrator.tenant
    chunks = (await gateway.parts.retriever.chunks(owner, collection, document_id)).chunks
    contents = tuple(dict.fromkeys(chunk.content_hash for chunk in chunks))
    nodes = await gateway.parts.controller.delete_document(DocumentDeletion(contents, namespace_of(owner)))
    return json_response(Dropped(nodes=nodes))


@router.post("/clear", responses=replies(Dropped, "The KV is dropped.", 401, 403, 500, 503))
async def clear_cache(_administrator: AdminDep, gateway: GatewayDep) -> Response:
    """Drop the KV of all tenants, except what running queries use."""
    gateway.readiness.require_parts()
    # The engine executes the orders. Without it, the call would wait until it is back.
    gateway.readiness.engine()
    return json_response(Dropped(nodes=await gateway.parts.controller.clear()))


def _warm_body(content: bytes) -> WarmBody:
    require_small(content)
    with validating("body"):
        return WarmBody.model_validate_json(content)


def _warm_lines(content: bytes) -> WarmBody:
    if content.count(b"\n") > MOST_WARM_QUERIES:
        raise PayloadTooLarge(f"The body has more than {MOST_WARM_QUERIES:,} lines, the limit of this path.")
    lines: list[WarmQuery] = []
    for number, line in enumerate(content.splitlines(), start=1):
        if line.strip():
            with validating("body", f"line {number}"):
                lines.append(WarmQuery.model_validate_json(line))
    with validating("body"):
        return WarmBody.model_validate({"queries": lines})
