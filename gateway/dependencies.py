"""What routes are given: the gateway's parts, and who is calling."""

from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Request, Security
from fastapi.security import HTTPBearer

from gateway.auth import Caller, Keyring
from gateway.metrics import GatewayMetrics
from gateway.readiness import Readiness
from gateway.runs import QueryRuns
from gateway.settings import GatewaySettings
from protocol.errors import UnsupportedMediaType
from protocol.parts import Retriever


@dataclass(frozen=True)
class Gateway:
    """The parts that routes work with, built once by ``create_app``."""

    retriever: Retriever
    runs: QueryRuns
    readiness: Readiness
    keyring: Keyring
    metrics: GatewayMetrics
    settings: GatewaySettings


def gateway_of(request: Request) -> Gateway:
    """The gateway that serves this request."""
    gateway = request.app.state.gateway
    assert isinstance(gateway, Gateway)
    return gateway


GatewayDep = Annotated[Gateway, Depends(gateway_of)]

# auto_error is off because the keyring answers, in the error shape; here it only puts the scheme into /docs.
_bearer = HTTPBearer(auto_error=False)


def authenticated(request: Request, gateway: GatewayDep, _scheme: Annotated[object, Security(_bearer)]) -> Caller:
    """The caller named by the key. Raises Unauthenticated."""
    return gateway.keyring.caller(request.headers)


CallerDep = Annotated[Caller, Depends(authenticated)]


def media_type(request: Request) -> str:
    """The type of the body without its parameters, in lower case; empty where none was given."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def json_only(request: Request) -> None:
    """Let JSON bodies pass. Raises UnsupportedMediaType."""
    given = media_type(request)
    if given != "application/json" and not (given.startswith("application/") and given.endswith("+json")):
        raise UnsupportedMediaType(f"Send application/json, not {given or 'a body without a content type'}.")
