"""The pages for people: at ``/`` to ask questions, manage documents and inspect the cache; at ``/docs`` the API.

The page at ``/`` is static and needs no key. It calls the API with the keys that the user enters. Its content security
policy lets the browser load and run only these files.

Swagger UI at ``/docs`` has a megabyte and is loaded from a public host. It shares its origin with the page, so
integrity hashes make the browser reject any other code.
"""

import asyncio
from functools import lru_cache
from hashlib import sha256
from importlib.resources import files
from typing import Annotated

import msgspec
from fastapi import APIRouter, FastAPI, Header, Request
from fastapi.openapi.docs import get_swagger_ui_html
from starlette.responses import HTMLResponse, Response

router = APIRouter()

_SCRIPTS = (
    "access", "answer", "api", "ask", "charts", "collections", "dom", "gantt", "live", "main", "numbers", "passage",
    "sse", "theme", "tip", "tree", "treemap", "graph/graph", "graph/layout", "graph/mode", "graph/picture",
    "graph/subgraph", "documents/deletion", "documents/documents", "documents/dropzone",
    "documents/jobs", "documents/names", "documents/queue", "documents/row", "documents/stored", "documents/stored_row",
    "documents/transfer", "documents/upload", "documents/uploads",
)  # fmt: skip
_STYLES = ("style.css", "documents/style.css", "graph/style.css")
_FILES = (
    {"index.html": "text/html", "icon.svg": "image/svg+xml"}
    | dict.fromkeys(_STYLES, "text/css")
    | {f"{name}.js": "text/javascript" for name in _SCRIPTS}
)
_POLICY = "; ".join([
    "default-src 'none'", "script-src 'self'", "style-src 'self'", "img-src 'self'", "connect-src 'self'",
    "base-uri 'none'", "form-action 'none'", "frame-ancestors 'none'",
])  # fmt: skip
_HOST = "https://cdn.jsdelivr.net/npm/swagger-ui-dist@5.35.0"
_SCRIPT, _STYLE = f"{_HOST}/swagger-ui-bundle.js", f"{_HOST}/swagger-ui.css"
_INTEGRITY = {
    _SCRIPT: "sha384-gjRm0bEPMeTmMh5jT2cHccIwCUZSTd8YC+j0d0sXw0MdGEfScduGpSyF3ZSSLkX9",
    _STYLE: "sha384-WlYgdmXYOOBWL5apwjDEZwN+U3HmXSSu5R6V5aGxEcf7z+KuRNwBhoxKVN1i3D5I",
}


class PageFile:
    """One file of the page, with an ETag made of its hash."""

    def __init__(self, name: str, media_type: str) -> None:
        self._content = (files("gateway") / "page" / name).read_bytes()
        self._headers = {
            "Cache-Control": "no-cache",
            "Content-Security-Policy": _POLICY,
            "Content-Type": f"{media_type}; charset=utf-8",
            "Cross-Origin-Opener-Policy": "same-origin",
            "ETag": f'"{sha256(self._content).hexdigest()[:32]}"',
            "Referrer-Policy": "no-referrer",
        }

    async def serve(self, if_none_match: Annotated[str, Header()] = "") -> Response:
        """Reply with the file, or 304 if the client has it."""
        known = {tag.strip().removeprefix("W/") for tag in if_none_match.split(",")}
        if self._headers["ETag"] in known:
            return Response(status_code=304, headers=self._headers)
        return Response(self._content, headers=self._headers)


# One route per file, so that no path from a request is ever opened.
for _name, _media_type in _FILES.items():
    _path = "/" if _name == "index.html" else f"/page/{_name}"
    router.add_api_route(_path, PageFile(_name, _media_type).serve, methods=["GET", "HEAD"], include_in_schema=False)


@router.get("/openapi.json", include_in_schema=False)
async def openapi_document(request: Request) -> Response:
    """The OpenAPI document. The framework's own route would make and encode it on the loop, at each request."""
    return Response(await asyncio.to_thread(_document, request.app), media_type="application/json")


@router.get("/docs", include_in_schema=False)
async def docs(request: Request) -> HTMLResponse:
    """Swagger UI over the OpenAPI document."""
    page = get_swagger_ui_html(
        openapi_url=str(request.app.openapi_url),
        title=f"{request.app.title} - Swagger UI",
        swagger_js_url=_SCRIPT,
        swagger_css_url=_STYLE,
        swagger_favicon_url="/page/icon.svg",
    )
    text = bytes(page.body).decode()
    for url, digest in _INTEGRITY.items():
        text = text.replace(f'"{url}"', f'"{url}" integrity="{digest}" crossorigin="anonymous"')
    return HTMLResponse(text)


@lru_cache(maxsize=1)
def _document(app: FastAPI) -> bytes:
    return msgspec.json.encode(app.openapi())
