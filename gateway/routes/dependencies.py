"""What routes are given: the gateway's parts, and who is calling."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Request, Security
from fastapi.security import HTTPBearer

from gateway.background.forgetting import Forgetting
from gateway.background.warmup import WarmUps
from gateway.limits.auth import Caller, Keyring
from gateway.limits.quotas import QueryTicket, Quotas, UploadTicket
from gateway.metrics.gateway_metrics import GatewayMetrics
from gateway.metrics.http_metrics import HttpMetrics
from gateway.metrics.part_metrics import Scrape
from gateway.middleware.request_context import said_of
from gateway.query.runs import QueryRuns
from gateway.readiness import Readiness
from gateway.settings import GatewaySettings
from gateway.stores.recent_documents import RecentDocuments
from gateway.stores.stores import Stores
from gateway.stores.uploads import Uploads
from gateway.wire.openapi import ADMIN_KEY, API_KEY
from protocol.errors import UnsupportedMediaType
from protocol.parts import Controller, PromptLayout, Retriever


@dataclass(frozen=True)
class Gateway:
    """The parts that routes work with, built once by ``create_app``."""

    retriever: Retriever
    controller: Controller
    layout: PromptLayout
    uploads: Uploads
    runs: QueryRuns
    forgetting: Forgetting
    warm_ups: WarmUps
    readiness: Readiness
    keyring: Keyring
    quotas: Quotas
    stores: Stores
    metrics: GatewayMetrics
    http_metrics: HttpMetrics
    scrape: Scrape
    recent_documents: RecentDocuments
    settings: GatewaySettings


# FastAPI takes dependencies that are plain functions to a thread, a millisecond's way there and back: these are not.


async def gateway_of(request: Request) -> Gateway:
    """The gateway that serves this request."""
    gateway = request.app.state.gateway
    assert isinstance(gateway, Gateway)
    return gateway


GatewayDep = Annotated[Gateway, Depends(gateway_of)]

# auto_error is off because the keyring answers, in the error shape; here it only puts the scheme into /docs.
_bearer = HTTPBearer(scheme_name=API_KEY, auto_error=False)
_admin_bearer = HTTPBearer(scheme_name=ADMIN_KEY, auto_error=False)


async def authenticated(request: Request, gateway: GatewayDep, _scheme: Annotated[object, Security(_bearer)]) -> Caller:
    """The caller named by the key, of whose requests this is one. Raises Unauthenticated or RateLimited."""
    caller = gateway.keyring.caller(request.headers)
    await gateway.quotas.request(caller, said_of(request.scope))
    return caller


CallerDep = Annotated[Caller, Depends(authenticated)]


async def _query_ticket(request: Request, caller: CallerDep, gateway: GatewayDep) -> AsyncIterator[QueryTicket]:
    """The admission of a query, until its response was sent. Raises RateLimited or Overloaded."""
    async with gateway.quotas.query(caller, said_of(request.scope)) as ticket:
        yield ticket


async def _upload_ticket(caller: CallerDep, gateway: GatewayDep) -> AsyncIterator[UploadTicket]:
    """The admission of an upload, before its body is read. Raises RateLimited."""
    async with gateway.quotas.upload(caller) as ticket:
        yield ticket


QueryTicketDep = Annotated[QueryTicket, Depends(_query_ticket)]
UploadTicketDep = Annotated[UploadTicket, Depends(_upload_ticket)]


async def administrator(
    request: Request, gateway: GatewayDep, _scheme: Annotated[object, Security(_admin_bearer)]
) -> Caller:
    """The administrator named by the key. Raises Unauthenticated or PermissionDenied."""
    return gateway.keyring.administrator(request.headers)


AdminDep = Annotated[Caller, Depends(administrator)]


def media_type(request: Request) -> str:
    """The type of the body without its parameters, in lower case; empty where none was given."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


async def json_only(request: Request) -> None:
    """Let JSON bodies pass. Raises UnsupportedMediaType."""
    given = media_type(request)
    if given != "application/json" and not (given.startswith("application/") and given.endswith("+json")):
        raise UnsupportedMediaType(f"Send application/json, not {given or 'a body without a content type'}.")
