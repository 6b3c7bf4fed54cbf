"""Administration of adapters: models that come and go while the stack runs."""

from typing import Annotated

from fastapi import APIRouter, Depends, Path
from starlette.responses import Response

from gateway.routes.bodies import JsonRoute, json_response
from gateway.routes.dependencies import AdminDep, GatewayDep, any_text, json_only
from gateway.wire.adapter_replies import Adapter, AdapterList, AdapterUnloaded
from gateway.wire.openapi import replies
from gateway.wire.schemas import AdapterBody
from protocol.generation import ADAPTER_NAME

router = APIRouter(prefix="/v1/admin/adapters", tags=["admin"], route_class=JsonRoute)

AdapterName = Annotated[str, Path(pattern=ADAPTER_NAME, description="The name that requests give as their model.")]


@router.get("", responses=replies(AdapterList, "The adapters.", 401, 403, 500, 503))
async def list_adapters(_administrator: AdminDep, gateway: GatewayDep) -> Response:
    """List the adapters that are served as models of their names."""
    return json_response(AdapterList(data=Adapter.of(gateway.readiness.engine())))


@router.put(
    "/" + any_text("name"),
    responses=replies(Adapter, "It is served.", 400, 401, 403, 409, 413, 415, 422, 500, 503),
    dependencies=[Depends(json_only)],
)
async def load_adapter(name: AdapterName, body: AdapterBody, _administrator: AdminDep, gateway: GatewayDep) -> Response:
    """Serve an adapter as a model of this name, on all instances, or on none if one cannot.

    It needs a free place (`generator.engine_args.max_loras`). Its files must be on every machine, or on the hub.
    Without Redis it is gone when the whole stack restarts; `generator.adapters` has those that stay.
    """
    gateway.readiness.require_parts()
    digest = await gateway.parts.controller.load_adapter(name, body.source)
    await gateway.readiness.ask_adapters()
    return json_response(Adapter(name=name, digest=digest, source=body.source))


@router.delete(
    "/" + any_text("name"), responses=replies(AdapterUnloaded, "It is gone.", 401, 403, 404, 409, 422, 500, 503)
)
async def unload_adapter(name: AdapterName, _administrator: AdminDep, gateway: GatewayDep) -> Response:
    """Serve an adapter no more. Requests that have begun go on; it keeps its place until they end.

    Its KV stays until it is evicted: the same files find it again. One of the configuration is a 409.
    """
    gateway.readiness.require_parts()
    await gateway.parts.controller.unload_adapter(name)
    await gateway.readiness.ask_adapters()
    return json_response(AdapterUnloaded(name=name))
