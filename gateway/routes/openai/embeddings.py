"""``POST /v1/embeddings``: the vectors of texts, by the embedder of the documents."""

from fastapi import APIRouter, Depends
from starlette.responses import Response

from gateway.deadline import Deadline
from gateway.off_loop import off_loop
from gateway.routes.dependencies import CallerDep, GatewayDep, QueryTicketDep, json_only
from gateway.routes.json_route import JsonRoute
from gateway.wire.openai.embeddings import EmbeddingList, EmbeddingsBody, encoded_embeddings
from gateway.wire.openapi import errors, json_reply
from protocol.errors import DeadlineExceeded

router = APIRouter(prefix="/v1", tags=["openai"], route_class=JsonRoute)


@router.post(
    "/embeddings",
    responses={
        200: json_reply(EmbeddingList, "The vectors."),
        **errors(400, 401, 404, 408, 413, 415, 422, 429, 500, 503),
    },
    dependencies=[Depends(json_only)],
)
async def embed(body: EmbeddingsBody, _caller: CallerDep, gateway: GatewayDep, ticket: QueryTicketDep) -> Response:
    """Embed texts like documents or queries."""
    body.refuse_unserved()
    deadline = Deadline(gateway.settings.query_timeout_s, "The texts were not embedded")
    request = body.to_protocol()
    try:
        found = await deadline.wait(gateway.retriever.embed(request))
    except DeadlineExceeded:
        # The embedder worked all the time, and only it could have counted tokens. A word has at least one.
        ticket.used(sum(len(text.split()) for text in request.texts))
        raise
    ticket.used(found.tokens)
    size = sum(map(len, found.vectors))
    content = await off_loop(size, lambda: encoded_embeddings(body, found))
    return Response(content, media_type="application/json")
