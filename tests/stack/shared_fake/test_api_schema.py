"""The API of a real stack answers as its OpenAPI document says, whatever a client sends."""

import pytest
from api_schema import MODES, check_api

pytestmark = [pytest.mark.ray, pytest.mark.prove("gateway/", "tests/api_schema.py")]


@pytest.mark.parametrize("mode", MODES)
def test_every_answer_matches_the_openapi_document(fake_stack, mode):
    assert len(check_api(fake_stack.url, mode, keys={})) > 10
