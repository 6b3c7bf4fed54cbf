"""Checks the API against its own OpenAPI document, with valid and invalid requests."""

import json

import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    allow_header_conformance,
    content_type_conformance,
    ignored_auth,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    response_headers_conformance,
    allow_header_conformance,
    ignored_auth,
]
MODES = list(schemathesis.GenerationMode)


@schemathesis.serializer("application/x-ndjson")
def json_lines(ctx, value):
    """Return a generated value as one line of a batch."""
    return value if isinstance(value, bytes) else json.dumps(value).encode() + b"\n"


def check_api(url: str, mode: schemathesis.GenerationMode, keys: dict[str, str], examples: int = 10) -> set[str]:
    """Call every operation with ``examples`` generated requests and return the operations' labels.

    ``keys`` maps path prefixes to API keys. An operation gets the key of the longest matching prefix.
    """
    schema = schemathesis.openapi.from_url(f"{url}/openapi.json")
    operations = [operation.ok() for operation in schema.get_all_operations()]
    for operation in operations:
        prefix = max((prefix for prefix in keys if operation.path.startswith(prefix)), key=len, default=None)
        headers = {} if prefix is None else {"Authorization": f"Bearer {keys[prefix]}"}
        check_operation(operation, mode, headers, examples)
    return {operation.label for operation in operations}


def check_operation(operation, mode: schemathesis.GenerationMode, headers: dict[str, str], examples: int) -> None:
    @given(case=operation.as_strategy(generation_mode=mode))
    @settings(max_examples=examples, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    def answers_as_described(case):
        case.call_and_validate(checks=CHECKS, headers=headers)

    try:
        answers_as_described()
    except Unsatisfiable:
        # An operation without parameters or body has no invalid calls.
        assert mode is schemathesis.GenerationMode.NEGATIVE
