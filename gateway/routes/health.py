"""Liveness, readiness and metrics."""

import asyncio
from typing import Literal

import msgspec
from fastapi import APIRouter
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.responses import Response

from gateway.routes.bodies import json_response
from gateway.routes.dependencies import GatewayDep
from gateway.wire.openapi import json_reply, replies
from protocol.errors import DeployFailed, Unavailable

router = APIRouter(tags=["health"])


class Health(msgspec.Struct, frozen=True):
    """The gateway is alive."""

    status: Literal["ok"] = "ok"


class Ready(msgspec.Struct, frozen=True):
    """Queries can be served. ``degraded`` names the stores that cannot be reached."""

    status: Literal["ok"] = "ok"
    degraded: tuple[str, ...] = ()


@router.get("/healthz", responses={200: json_reply(Health, "The gateway is alive.")})
async def healthz() -> Response:
    """Check that this process answers. Checks no other part, so an engine's restart does not restart the gateway."""
    return json_response(Health())


@router.get("/readyz", responses=replies(Ready, "Queries can be served.", 503))
async def readyz(gateway: GatewayDep) -> Response:
    """Check that queries can be served. A 503 names the missing parts.

    Its code is `deploy_failed` if a part could not be deployed, so that retrying does not help.
    """
    await gateway.readiness.check()
    missing = gateway.readiness.missing()
    if missing:
        kind = DeployFailed if any(isinstance(error, DeployFailed) for error in missing.values()) else Unavailable
        raise kind(" ".join(f"{part}: {error.message}" for part, error in missing.items()), ",".join(missing))
    return json_response(Ready(degraded=gateway.stores.degraded()))


@router.get("/metrics", responses={200: {"description": "Prometheus metrics.", "content": {"text/plain": {}}}})
async def metrics(gateway: GatewayDep) -> Response:
    """Get the metrics of the gateway and the other parts, including vLLM's, in Prometheus' text format."""
    await gateway.scrape.refresh()
    # With the engines' metrics, thousands of lines.
    exposition = await asyncio.to_thread(generate_latest, gateway.metrics.registry)
    return Response(exposition, media_type=CONTENT_TYPE_LATEST)
