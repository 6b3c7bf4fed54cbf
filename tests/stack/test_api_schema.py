"""Whatever a client sends, the API answers as its OpenAPI document says, and never with a defect."""

import json

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

pytestmark = pytest.mark.ray


@schemathesis.serializer("application/x-ndjson")
def json_lines(ctx, value):
    """A generated value as one line of a batch."""
    return value if isinstance(value, bytes) else json.dumps(value).encode() + b"\n"


CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]


@pytest.mark.parametrize("mode", list(schemathesis.GenerationMode))
def test_every_answer_is_as_described(fake_stack, mode):
    schema = schemathesis.openapi.from_url(f"{fake_stack.url}/openapi.json")
    operations = [operation.ok() for operation in schema.get_all_operations()]
    assert len(operations) > 10
    for operation in operations:

        @given(case=operation.as_strategy(generation_mode=mode))
        @settings(max_examples=10, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
        def answers_as_described(case):
            case.call_and_validate(checks=CHECKS)

        try:
            answers_as_described()
        except Unsatisfiable:
            # An operation without parameters or body cannot be called wrongly.
            assert mode is schemathesis.GenerationMode.NEGATIVE
