"""``GET /v1/models``: the served model."""

from fastapi import APIRouter
from starlette.responses import Response

from gateway.routes.any_text import any_text
from gateway.routes.bodies import json_response
from gateway.routes.dependencies import CallerDep, Gateway, GatewayDep
from gateway.wire.openai.models import Model, ModelList
from gateway.wire.openapi import errors, json_reply
from protocol.errors import UnknownModel
from protocol.generation import EngineInfo

router = APIRouter(prefix="/v1", tags=["openai"])


@router.get("/models", responses={200: json_reply(ModelList, "The served models."), **errors(401, 429, 500, 503)})
async def list_models(_caller: CallerDep, gateway: GatewayDep) -> Response:
    """List the served model."""
    return json_response(ModelList(data=(_model(gateway.readiness.engine()),)))


@router.get(
    "/models/" + any_text("model_id"),
    responses={200: json_reply(Model, "The model."), **errors(401, 404, 422, 429, 500, 503)},
)
async def get_model(model_id: str, _caller: CallerDep, gateway: GatewayDep) -> Response:
    """Get the served model."""
    return json_response(_model(served_model(model_id, gateway)))


def served_model(model_id: str, gateway: Gateway) -> EngineInfo:
    """The engine that serves this model. Raises UnknownModel, EngineNotReady or EngineDied."""
    engine = gateway.readiness.engine()
    if model_id != engine.model:
        raise UnknownModel(f"The model {model_id!r} is not served; use {engine.model!r}.", "model")
    return engine


def _model(engine: EngineInfo) -> Model:
    return Model(id=engine.model, created=0, max_model_len=engine.max_model_len)
