"""What a response that is no success means: the stack's word that it is asked too much, or an error."""

import requests
from locust.clients import ResponseContextManager

from loadtest.records import Outcome

_TOO_MUCH = (requests.codes.too_many_requests, requests.codes.service_unavailable)


def refusal_or_failure(response: ResponseContextManager) -> tuple[Outcome, str]:
    """What it is, and why. A 429 or 503 is a refusal only if it says when to come again."""
    if not response.status_code:
        return Outcome.FAILED, f"no response: {type(response.error).__name__}"
    if response.status_code in _TOO_MUCH and "Retry-After" in response.headers:
        return Outcome.REFUSED, _code(response)
    return Outcome.FAILED, f"HTTP {response.status_code} {_code(response)}".rstrip()


def _code(response: requests.Response) -> str:
    try:
        return str(response.json()["error"]["code"])
    except (requests.RequestException, ValueError, LookupError, TypeError):
        return ""
