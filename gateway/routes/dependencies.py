"""Dependencies of the routes: the gateway's objects and the caller."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Request, Security
from fastapi.security import HTTPBearer
from starlette.convertors import Convertor, register_url_convertor

from gateway.background.cache_filling import CacheFilling
from gateway.background.donors import IngestedPrefill
from gateway.background.forgetting import Forgetting
from gateway.limits.auth import Caller, Keyring
from gateway.limits.quotas import QueryTicket, Quotas, UploadTicket
from gateway.metrics.gateway_metrics import GatewayMetrics, HttpMetrics
from gateway.metrics.part_metrics import Scrape
from gateway.middleware.identity import caller_of
from gateway.middleware.request_context import extra_headers
from gateway.query.runs import QueryRuns
from gateway.query.search import Searches
from gateway.readiness import Readiness
from gateway.settings import GatewaySettings
from gateway.stores.recent import RecentDocuments
from gateway.stores.stores import Stores
from gateway.stores.uploads import Uploads
from gateway.wire.openapi import ADMIN_KEY, API_KEY
from protocol.errors import UnsupportedMediaType
from protocol.parts import Parts


@dataclass(frozen=True)
class Gateway:
    """The objects that routes use, built once per app."""

    parts: Parts
    uploads: Uploads
    ingested: IngestedPrefill
    runs: QueryRuns
    searches: Searches
    forgetting: Forgetting
    filling: CacheFilling
    readiness: Readiness
    keyring: Keyring
    quotas: Quotas
    stores: Stores
    metrics: GatewayMetrics
    http_metrics: HttpMetrics
    scrape: Scrape
    recent_documents: RecentDocuments
    settings: GatewaySettings


# All dependencies are async: FastAPI runs plain functions in a thread, which costs a millisecond.


async def gateway_of(request: Request) -> Gateway:
    """The gateway that serves this request."""
    gateway = request.app.state.gateway
    assert isinstance(gateway, Gateway)
    return gateway


GatewayDep = Annotated[Gateway, Depends(gateway_of)]

# These only add the scheme to /docs. auto_error is off because the keyring raises errors in the error shape.
_bearer = HTTPBearer(scheme_name=API_KEY, auto_error=False)
_admin_bearer = HTTPBearer(scheme_name=ADMIN_KEY, auto_error=False)


async def authenticated(request: Request, gateway: GatewayDep, _scheme: Annotated[object, Security(_bearer)]) -> Caller:
    """The caller of the request's key. Counts the request. Raises Unauthenticated or RateLimited."""
    caller = gateway.keyring.api_caller(_identified(request))
    await gateway.quotas.request(caller, extra_headers(request.scope))
    return caller


CallerDep = Annotated[Caller, Depends(authenticated)]


async def _query_ticket(request: Request, caller: CallerDep, gateway: GatewayDep) -> AsyncIterator[QueryTicket]:
    """Admission of a query, held until its response is sent. Raises RateLimited or Overloaded."""
    async with gateway.quotas.query(caller, extra_headers(request.scope)) as ticket:
        yield ticket


async def _search_slot(caller: CallerDep, gateway: GatewayDep) -> AsyncIterator[None]:
    """Admission of a search, held until its response is sent. Raises RateLimited or Overloaded."""
    with gateway.quotas.search(caller):
        yield


async def _upload_ticket(caller: CallerDep, gateway: GatewayDep) -> AsyncIterator[UploadTicket]:
    """Admission of an upload, before its body is read. Raises RateLimited."""
    async with gateway.quotas.upload(caller) as ticket:
        yield ticket


QueryTicketDep = Annotated[QueryTicket, Depends(_query_ticket)]
SearchSlotDep = Annotated[None, Depends(_search_slot)]
UploadTicketDep = Annotated[UploadTicket, Depends(_upload_ticket)]


async def administrator(
    request: Request, gateway: GatewayDep, _scheme: Annotated[object, Security(_admin_bearer)]
) -> Caller:
    """The administrator of the request's key. Raises Unauthenticated or PermissionDenied."""
    caller = _identified(request)
    gateway.keyring.require_administrator(caller)
    return caller


def _identified(request: Request) -> Caller:
    caller = caller_of(request.scope)
    assert caller is not None, "strangers are refused before any route"
    return caller


AdminDep = Annotated[Caller, Depends(administrator)]


def media_type(request: Request) -> str:
    """The body's content type without parameters, in lower case. Empty if the request has none."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


async def json_only(request: Request) -> None:
    """Accept JSON bodies only. Raises UnsupportedMediaType."""
    given = media_type(request)
    if given != "application/json" and not (given.startswith("application/") and given.endswith("+json")):
        raise UnsupportedMediaType(f"Send application/json, not {given or 'a body without a content type'}.")


class _AnyText(Convertor[str]):
    """Starlette's own ``path`` ends at a line break.

    A document id with one would then match no route, and its refusal would be a 404 in place of a 422.
    """

    regex = r"(?s:.*)"

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value


register_url_convertor("any_text", _AnyText())


def any_text(name: str) -> str:
    """The place of this parameter in a route's path. Its value may have slashes and line breaks."""
    return f"{{{name}:any_text}}"
