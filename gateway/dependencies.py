"""What routes are given: the gateway's parts, and who is calling."""

from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Request, Security
from fastapi.security import HTTPBearer

from gateway.auth import Caller, Keyring
from gateway.forgetting import Forgetting
from gateway.http_metrics import HttpMetrics
from gateway.metrics import GatewayMetrics
from gateway.openapi import ADMIN_KEY, API_KEY
from gateway.part_metrics import Scrape
from gateway.readiness import Readiness
from gateway.recent_documents import RecentDocuments
from gateway.runs import QueryRuns
from gateway.settings import GatewaySettings
from gateway.warmup import WarmUps
from protocol.errors import UnsupportedMediaType
from protocol.parts import Controller, PromptLayout, Retriever


@dataclass(frozen=True)
class Gateway:
    """The parts that routes work with, built once by ``create_app``."""

    retriever: Retriever
    controller: Controller
    layout: PromptLayout
    runs: QueryRuns
    forgetting: Forgetting
    warm_ups: WarmUps
    readiness: Readiness
    keyring: Keyring
    metrics: GatewayMetrics
    http_metrics: HttpMetrics
    scrape: Scrape
    recent_documents: RecentDocuments
    settings: GatewaySettings


def gateway_of(request: Request) -> Gateway:
    """The gateway that serves this request."""
    gateway = request.app.state.gateway
    assert isinstance(gateway, Gateway)
    return gateway


GatewayDep = Annotated[Gateway, Depends(gateway_of)]

# auto_error is off because the keyring answers, in the error shape; here it only puts the scheme into /docs.
_bearer = HTTPBearer(scheme_name=API_KEY, auto_error=False)
_admin_bearer = HTTPBearer(scheme_name=ADMIN_KEY, auto_error=False)


def authenticated(request: Request, gateway: GatewayDep, _scheme: Annotated[object, Security(_bearer)]) -> Caller:
    """The caller named by the key. Raises Unauthenticated."""
    return gateway.keyring.caller(request.headers)


CallerDep = Annotated[Caller, Depends(authenticated)]


def administrator(request: Request, gateway: GatewayDep, _scheme: Annotated[object, Security(_admin_bearer)]) -> Caller:
    """The administrator named by the key. Raises Unauthenticated or PermissionDenied."""
    return gateway.keyring.administrator(request.headers)


AdminDep = Annotated[Caller, Depends(administrator)]


def media_type(request: Request) -> str:
    """The type of the body without its parameters, in lower case; empty where none was given."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def json_only(request: Request) -> None:
    """Let JSON bodies pass. Raises UnsupportedMediaType."""
    given = media_type(request)
    if given != "application/json" and not (given.startswith("application/") and given.endswith("+json")):
        raise UnsupportedMediaType(f"Send application/json, not {given or 'a body without a content type'}.")
