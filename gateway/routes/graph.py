"""``GET /v1/collections/{collection}/graph``: a bounded part of a collection's knowledge graph."""

from typing import Annotated

from fastapi import APIRouter, Query
from starlette.responses import Response

from gateway.routes.bodies import json_response
from gateway.routes.dependencies import CallerDep, GatewayDep
from gateway.routes.documents import CollectionPath
from gateway.routes.json_route import JsonRoute
from gateway.wire.document_replies import GraphReply
from gateway.wire.openapi import errors, json_reply
from protocol.graph import GraphRequest

router = APIRouter(prefix="/v1", tags=["documents"], route_class=JsonRoute)

Label = Annotated[str, Query(min_length=1, max_length=512)]


@router.get(
    "/collections/{collection}/graph",
    responses={200: json_reply(GraphReply, "A part of the graph."), **errors(401, 404, 409, 422, 429, 500, 503)},
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
    view = await gateway.retriever.view_graph(
        GraphRequest(caller.tenant, collection, tuple(label), max_depth, max_nodes, max_relations)
    )
    return json_response(GraphReply.of(view, collection))
