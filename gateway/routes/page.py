"""The page at ``/``: ask questions, watch the answers stream, manage documents, and inspect the cache.

The page is static and needs no key. It calls the API with the keys that the user enters. Its content security policy
lets the browser load and run only these files.
"""

from hashlib import sha256
from importlib.resources import files
from typing import Annotated

from fastapi import APIRouter, Header
from starlette.responses import Response

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
