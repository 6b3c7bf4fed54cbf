import re

import pytest

from gateway.settings import ApiKey

CLEAR = "/v1/admin/cache/clear"


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
async def test_requests_of_other_origins_are_refused(served, site: str):
    headers = {"Sec-Fetch-Site": site, "Origin": "https://elsewhere.example"}
    refused = await served.client.post(CLEAR, headers=headers)
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "permission_denied")
    read = await served.client.get("/v1/collections", headers=headers)
    assert read.status_code == 200
    assert not [name for name in read.headers if name.startswith("access-control-")]


async def test_gateway_with_keys_needs_no_cross_site_check(in_process):
    async with in_process(api_keys=(ApiKey(secret="k", tenant="acme"),)) as served:
        headers = {"Sec-Fetch-Site": "cross-site"}
        assert (await served.client.post("/query", json={"query": "x"}, headers=headers)).status_code == 401
        headers["Authorization"] = "Bearer k"
        assert (await served.client.post("/query", json={"query": "x"}, headers=headers)).status_code == 200


@pytest.mark.parametrize("headers", [{}, {"Sec-Fetch-Site": "same-origin"}, {"Sec-Fetch-Site": "none"}])
async def test_own_page_and_programs_are_accepted(served, headers):
    assert (await served.client.post(CLEAR, headers=headers)).status_code == 200


async def test_cors_allows_no_origin(served):
    headers = {"Origin": "https://elsewhere.example", "Access-Control-Request-Method": "PUT"}
    asked = await served.client.options("/v1/collections/default/documents/d", headers=headers)
    assert asked.status_code == 405
    assert not [name for name in asked.headers if name.startswith("access-control-")]


@pytest.mark.parametrize("path", ["/", "/healthz", "/v1/collections", "/nowhere", "/metrics", "/docs"])
async def test_replies_forbid_content_sniffing(served, path: str):
    assert (await served.client.get(path)).headers["x-content-type-options"] == "nosniff"


async def test_docs_scripts_have_integrity_hashes(served):
    page = (await served.client.get("/docs")).text
    foreign = re.findall(r'<(?:script|link)[^>]*"https?://[^>]*>', page)
    assert len(foreign) == 2
    assert all('integrity="sha384-' in tag and 'crossorigin="anonymous"' in tag for tag in foreign)
