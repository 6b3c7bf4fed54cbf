"""Replies to random requests, with and without keys, match the OpenAPI document."""

import asyncio

import pytest
from api_schema import check_api
from schemathesis import GenerationMode

from gateway.settings import ApiKey

KEYS = {
    "api_keys": (ApiKey(secret="key-of-acme", tenant="acme"), ApiKey(secret="key-of-other", tenant="other")),
    "admin_key": "key-of-admin",
}
SENT = {
    "the right key": {"/": "key-of-acme", "/v1/admin": "key-of-admin"},
    "the wrong key": {"/": "key-of-admin", "/v1/admin": "key-of-acme"},
}
VALID, INVALID = GenerationMode.POSITIVE, GenerationMode.NEGATIVE


@pytest.mark.parametrize(
    ("configured", "key", "mode"),
    [
        ({}, None, VALID),
        ({}, None, INVALID),
        (KEYS, "the right key", VALID),
        (KEYS, "the right key", INVALID),
        (KEYS, "the wrong key", VALID),
        (KEYS, None, VALID),
    ],
)
async def test_replies_match_the_openapi_document(over_http, configured, key, mode):
    async with over_http(**configured) as served:
        asked = await asyncio.to_thread(check_api, served.url, mode, SENT.get(key, {}), examples=4)
    assert asked >= {
        "POST /v1/query",
        "POST /v1/chat/completions",
        "POST /v1/completions",
        "POST /v1/embeddings",
        "POST /v1/responses",
        "PUT /v1/collections/{collection}/documents/{document_id}",
        "POST /v1/collections/{collection}/documents:batch",
        "GET /v1/admin/cache/activity",
        "POST /v1/admin/cache/warm",
        "POST /v1/admin/cache/precompute",
        "DELETE /v1/admin/cache/documents/{document_id}",
        "GET /metrics",
    }
