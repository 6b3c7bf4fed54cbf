"""The page at ``/``: ask, watch the answer come, and see what the cache holds.

It is static, so it needs no key: what it shows, it asks the API for, with the keys that are typed into it. Nothing
comes from another host, and a browser is told to run and to load nothing but these files.
"""

from hashlib import sha256
from importlib.resources import files
from typing import Annotated

from fastapi import APIRouter, Header
from starlette.responses import Response

router = APIRouter()

_SCRIPTS = (
    "access", "answer", "api", "ask", "charts", "dom", "gantt", "live", "main", "numbers", "sse", "theme", "tree",
    "treemap",
)  # fmt: skip
_FILES = {"index.html": "text/html", "style.css": "text/css", "icon.svg": "image/svg+xml"} | {
    f"{name}.js": "text/javascript" for name in _SCRIPTS
}
_POLICY = "; ".join([
    "default-src 'none'", "script-src 'self'", "style-src 'self'", "img-src 'self'", "connect-src 'self'",
    "base-uri 'none'", "form-action 'none'", "frame-ancestors 'none'",
])  # fmt: skip


class PageFile:
    """One file of the page; whoever has it already, as its hash says, does not get it again."""

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
        """The file, or 304."""
        known = {tag.strip().removeprefix("W/") for tag in if_none_match.split(",")}
        if self._headers["ETag"] in known:
            return Response(status_code=304, headers=self._headers)
        return Response(self._content, headers=self._headers)


# Each has a route of its own, so that no name out of a request is ever looked for.
for _name, _media_type in _FILES.items():
    _path = "/" if _name == "index.html" else f"/page/{_name}"
    router.add_api_route(_path, PageFile(_name, _media_type).serve, methods=["GET", "HEAD"], include_in_schema=False)
