"""Requests from the stack's own OpenAPI document, valid and invalid ones."""

from typing import Any

import requests
import schemathesis
from hypothesis import reject
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy
from schemathesis import GenerationMode
from schemathesis.core.errors import InvalidSchema
from schemathesis.core.result import Ok

from ragtree_lab.fuzz.requests import Caller, Input, call, one

_ADMIN_PATHS = "/v1/admin"
_LARGEST_ANSWER = 4
_LIMIT_OF = {
    "/query": "max_tokens",
    "/v1/query": "max_tokens",
    "/v1/chat/completions": "max_tokens",
    "/v1/completions": "max_tokens",
    "/v1/responses": "max_output_tokens",
}
_LIMITS = {"max_completion_tokens", *_LIMIT_OF.values()}
_OWN_HEADERS = {
    "authorization",
    "connection",
    "content-length",
    "host",
    "transfer-encoding",
    "accept-encoding",
    "user-agent",
    # Random, also with a seed.
    "x-schemathesis-testcaseid",
}
_BASE = "http://fuzz"
_EXPENSIVE = ("/v1/admin/cache/clear",)
"""Left out: the judge's times would be those of an empty cache."""


@schemathesis.serializer("application/x-ndjson")
def json_lines(_context: object, value: object) -> bytes:
    """Return a generated value as one line of a batch."""
    return value if isinstance(value, bytes) else str(value).encode("utf-8", "replace") + b"\n"


def surface(document: dict[str, Any]) -> SearchStrategy[Input]:
    """Calls of every operation that an OpenAPI document describes, by their own callers and by others."""
    schema = schemathesis.openapi.from_dict(document)
    operations = [result.ok() for result in schema.get_all_operations() if isinstance(result, Ok)]
    cases = [
        operation.as_strategy(generation_mode=mode)
        for operation in operations
        if operation.path not in _EXPENSIVE
        for mode in GenerationMode
    ]

    @st.composite
    def calls(draw: st.DrawFn) -> Input:
        try:
            case = draw(st.sampled_from(cases).flatmap(lambda strategy: strategy))
        except InvalidSchema:
            # Now and then, nothing violates a schema in the way that was drawn.
            reject()
        own = Caller.ADMIN if case.path.startswith(_ADMIN_PATHS) else Caller.STRANGER
        return _as_input(case, draw(st.sampled_from([own, own, own, Caller.STRANGER, Caller.NOBODY])))

    return calls()


def _as_input(case: Any, caller: Caller) -> Input:  # noqa: ANN401 - schemathesis names no type for a case
    if isinstance(case.body, dict):
        # Answers as long as the model's context would be all that the stack is busy with.
        for name in _LIMITS:
            if isinstance(case.body.get(name), int):
                case.body[name] = min(case.body[name], _LARGEST_ANSWER)
        own = _LIMIT_OF.get(case.path)
        if own is not None:
            case.body.setdefault(own, _LARGEST_ANSWER)
    try:
        prepared = requests.Request(**case.as_transport_kwargs(base_url=_BASE)).prepare()
    except (requests.RequestException, ValueError):
        reject()
    target = prepared.path_url
    headers = {name: str(value) for name, value in prepared.headers.items() if name.lower() not in _OWN_HEADERS}
    body = prepared.body.encode() if isinstance(prepared.body, str) else prepared.body
    if body is not None and not isinstance(body, bytes):
        reject()
    return one(call(case.method.upper(), target, body, caller=caller, headers=headers))
