"""What a response that is no success means: the stack's word that it is asked too much, or an error."""

import requests
from locust.clients import ResponseContextManager

from loadtest.reporting.records import Outcome

_TOO_MUCH = (requests.codes.too_many_requests, requests.codes.service_unavailable)


def refusal_or_failure(response: ResponseContextManager) -> tuple[Outcome, str]:
    """What it is, and why. A 429 or 503 is a refusal only if it says when to come again."""
    if not response.status_code:
        return Outcome.FAILED, f"no response: {root_cause(response.error)}"
    if response.status_code in _TOO_MUCH and "Retry-After" in response.headers:
        return Outcome.REFUSED, _code(response)
    return Outcome.FAILED, f"HTTP {response.status_code} {_code(response)}".rstrip()


def root_cause(error: BaseException | None) -> str:
    """What kind of error lies below those that requests and urllib3 wrap it in."""
    while error is not None and error.__context__ is not None:
        error = error.__context__
    return type(error).__name__


def _code(response: requests.Response) -> str:
    try:
        return str(response.json()["error"]["code"])
    except (requests.RequestException, ValueError, LookupError, TypeError):
        return ""
