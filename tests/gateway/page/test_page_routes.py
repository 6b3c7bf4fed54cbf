"""The page's files over HTTP, and their headers."""

import re
from importlib.resources import files
from pathlib import Path

import pytest

from gateway.routes.page import router
from gateway.settings import ApiKey

PATHS = sorted(route.path for route in router.routes if route.path not in ("/docs", "/openapi.json"))
FOLDER = Path(str(files("gateway") / "page"))
FILES = [file for file in FOLDER.rglob("*") if file.is_file()]


def test_exactly_the_files_of_the_folder_are_served():
    names = {"index.html" if path == "/" else path.removeprefix("/page/") for path in PATHS}
    assert names == {file.relative_to(FOLDER).as_posix() for file in FILES}


@pytest.mark.parametrize("path", PATHS)
async def test_file_has_its_headers(served, path):
    reply = await served.client.get(path)
    assert reply.status_code == 200
    policy = dict(rule.split(" ", 1) for rule in reply.headers["content-security-policy"].split("; "))
    assert policy["default-src"] == "'none'"
    assert set(policy.values()) == {"'none'", "'self'"}
    assert reply.headers["x-content-type-options"] == "nosniff"
    assert reply.headers["cache-control"] == "no-cache"
    kind = {"": "text/html", "js": "text/javascript", "css": "text/css", "svg": "image/svg+xml"}[
        path.rpartition(".")[2].strip("/")
    ]
    assert reply.headers["content-type"] == f"{kind}; charset=utf-8"


async def test_known_etag_gets_304(served):
    tag = (await served.client.get("/")).headers["etag"]
    for given in (tag, f"W/{tag}", f'"other", {tag}'):
        again = await served.client.get("/", headers={"If-None-Match": given})
        assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", tag)
    assert (await served.client.get("/", headers={"If-None-Match": '"other"'})).status_code == 200
    assert (await served.client.get("/page/main.js")).headers["etag"] != tag


async def test_head_has_the_same_headers(live):
    head, get = await live.client.head("/"), await live.client.get("/")
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["etag"] == get.headers["etag"]
    assert head.headers["content-length"] == get.headers["content-length"] == str(len(get.content))


@pytest.mark.parametrize(
    "path",
    [
        "/page",
        "/page/",
        "/page/none.js",
        "/page/index.html",
        "/page/../app.py",
        "/page/%2e%2e/app.py",
        "/page/main.js/x",
        "/page/documents",
        "/page/documents/",
        "/page/documents/../main.js",
    ],
)
async def test_unknown_paths_are_404(live, path):
    # Over a raw socket, because a client may normalise the path.
    reply = await live.client.get(path.replace("..", "%2E%2E"))
    assert reply.status_code == 404
    assert reply.json()["error"]["code"] == "not_found"


async def test_page_refuses_other_methods(served):
    reply = await served.client.post("/")
    assert (reply.status_code, set(reply.headers["allow"].split(", "))) == (405, {"GET", "HEAD"})


async def test_page_needs_no_key_but_its_data_does(in_process):
    async with in_process(api_keys=(ApiKey(secret="k", tenant="acme"),), admin_key="root") as served:
        for path in PATHS:
            assert (await served.client.get(path)).status_code == 200
        for path in ("/v1/collections", "/v1/admin/cache/tree", "/v1/admin/cache/activity"):
            assert (await served.client.get(path)).status_code == 401
        assert (await served.client.post("/query", json={"query": "x"})).status_code == 401


async def test_page_is_not_in_the_openapi_document(served):
    described = (await served.client.get("/openapi.json")).json()["paths"]
    assert not [path for path in described if path == "/" or path.startswith("/page")]


def test_page_loads_only_its_own_files_and_writes_no_markup():
    for file in FILES:
        text = file.read_text(encoding="utf-8")
        hosts = set(re.findall(r"(?:https?:)?//[a-z][\w.-]*\.[a-z]+", text)) - {"http://www.w3.org"}
        assert not hosts, file.name
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", text), (
            file.name
        )
