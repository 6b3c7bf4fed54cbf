"""Replies to random requests, with and without keys, match the OpenAPI document."""

import asyncio

import pytest
from api_schema import MODES, check_api

from gateway.settings import ApiKey

KEYS = {
    "api_keys": (ApiKey(secret="key-of-acme", tenant="acme"), ApiKey(secret="key-of-other", tenant="other")),
    "admin_key": "key-of-admin",
}
SENT = {
    "the right key": {"/": "key-of-acme", "/v1/admin": "key-of-admin"},
    "the wrong key": {"/": "key-of-admin", "/v1/admin": "key-of-acme"},
    "no key": {},
}
CASES = [*((KEYS, sent) for sent in SENT.values()), ({}, {})]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("configured", "sent"), CASES, ids=[*SENT, "open"])
async def test_replies_match_the_openapi_document(over_http, mode, configured, sent):
    async with over_http(**configured) as served:
        asked = await asyncio.to_thread(check_api, served.url, mode, sent, examples=4)
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
