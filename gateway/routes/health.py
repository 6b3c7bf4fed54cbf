"""Whether the gateway lives, whether the stack can serve, and what it counts."""

from fastapi import APIRouter
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.responses import Response

from gateway.routes.dependencies import GatewayDep
from gateway.routes.responses import json_response
from gateway.wire.health_replies import Health, Ready
from gateway.wire.openapi import errors, json_reply
from protocol.errors import DeployFailed, Unavailable

router = APIRouter(tags=["health"])


@router.get("/healthz", responses={200: json_reply(Health, "The gateway lives.")})
async def healthz() -> Response:
    """Whether this process answers; asks nobody else, so a restart of the engine does not restart the gateway."""
    return json_response(Health())


@router.get("/readyz", responses={200: json_reply(Ready, "Queries can be served."), **errors(503)})
async def readyz(gateway: GatewayDep) -> Response:
    """Whether queries can be served, and by whom not; the code `deploy_failed` says that waiting will not help."""
    await gateway.readiness.look()
    missing = gateway.readiness.missing()
    if missing:
        kind = DeployFailed if any(isinstance(error, DeployFailed) for error in missing.values()) else Unavailable
        raise kind(" ".join(f"{part}: {error.message}" for part, error in missing.items()), ",".join(missing))
    return json_response(Ready(degraded=gateway.stores.degraded()))


@router.get("/metrics", responses={200: {"description": "Prometheus metrics.", "content": {"text/plain": {}}}})
async def metrics(gateway: GatewayDep) -> Response:
    """The gateway's metrics, and the other parts' as of now, vLLM's own among them, in Prometheus' text format."""
    await gateway.scrape.look()
    return Response(generate_latest(gateway.metrics.registry), media_type=CONTENT_TYPE_LATEST)
