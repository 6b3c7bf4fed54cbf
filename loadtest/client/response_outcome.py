"""Classify a response without an answer: a refusal by an overloaded stack, or a failure."""

import requests
from locust.clients import ResponseContextManager

from loadtest.reporting.request_records import Outcome

_OVERLOADED = (requests.codes.too_many_requests, requests.codes.service_unavailable)


def refusal_or_failure(response: ResponseContextManager) -> tuple[Outcome, str]:
    """Return the outcome and its reason. A 429 or 503 is a refusal only with a Retry-After header."""
    if not response.status_code:
        return Outcome.FAILED, f"no response: {root_cause(response.error)}"
    if response.status_code in _OVERLOADED and "Retry-After" in response.headers:
        return Outcome.REFUSED, _code(response)
    return Outcome.FAILED, f"HTTP {response.status_code} {_code(response)}".rstrip()


def root_cause(error: BaseException | None) -> str:
    """Return the name of the innermost error that requests and urllib3 wrapped."""
    while error is not None and error.__context__ is not None:
        error = error.__context__
    return type(error).__name__


def _code(response: requests.Response) -> str:
    try:
        return str(response.json()["error"]["code"])
    except (requests.RequestException, ValueError, LookupError, TypeError):
        return ""
