"""The API's documentation at ``/docs``.

Swagger UI has a megabyte and is loaded from a public host. It shares its origin with the page at ``/``, where users
enter keys, so integrity hashes make the browser reject any other code.
"""

import asyncio
from functools import lru_cache

import msgspec
from fastapi import APIRouter, FastAPI, Request
from fastapi.openapi.docs import get_swagger_ui_html
from starlette.responses import HTMLResponse, Response

router = APIRouter()

_HOST = "https://cdn.jsdelivr.net/npm/swagger-ui-dist@5.35.0"
_SCRIPT, _STYLE = f"{_HOST}/swagger-ui-bundle.js", f"{_HOST}/swagger-ui.css"
_INTEGRITY = {
    _SCRIPT: "sha384-gjRm0bEPMeTmMh5jT2cHccIwCUZSTd8YC+j0d0sXw0MdGEfScduGpSyF3ZSSLkX9",
    _STYLE: "sha384-WlYgdmXYOOBWL5apwjDEZwN+U3HmXSSu5R6V5aGxEcf7z+KuRNwBhoxKVN1i3D5I",
}


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
